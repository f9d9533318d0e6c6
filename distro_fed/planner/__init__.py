"""What a run will send and how long it will take, from the sizes of its updates and the speed of its links.

Nothing here trains, loads weights or imports torch: every size is a formula, and tests hold each formula against the
real encoding.
"""
