"""The sum of the members' updates, and nothing else about any of them.

Five exchanges in the manner of Bonawitz et al. (CCS 2017, ia.cr/2017/281), active variant: plain state machines that
turn one message into the next, without network, Flower or torch. ``docs/security.md`` has the argument.

=====  =====================  ======================  ==========================================================
stage  server sends           client answers          what it is for
=====  =====================  ======================  ==========================================================
0      ``Proposal``           ``Advertisement``       agree on everything public; fresh keys, signed
1      ``Keys``               ``Shares``              every secret is split among the members
2      ``Delivery``           ``MaskedVector``        the update under masks that cancel in the sum
3      ``SurvivorSet``        ``Acknowledgement``     all sign the same set of members that are in the sum
4      ``Proof``              ``UnmaskShares``        shares that remove what did not cancel
=====  =====================  ======================  ==========================================================

Reading order: :mod:`.rules`, :mod:`.messages`, :mod:`.client_session`, :mod:`.server_session`; below them
:mod:`.key_agreement`, :mod:`.shamir`, :mod:`.masks`, :mod:`.packing`, :mod:`.update_vector`; and the files of a member:
:mod:`.identity`, :mod:`.roster`, :mod:`.policy`, :mod:`.ledger`.

Where the cohort is fixed, five exchanges become three a round: nothing in stages 0 and 1 depends on the model, so they
travel with the stages 3 and 4 of the round before (:func:`.client_session.ClientSession.respond_all`)::

    SurvivorSet(r) + Proposal(r+1)  ->  Acknowledgement(r) + Advertisement(r+1)
    Proof(r)       + Keys(r+1)      ->  UnmaskShares(r)    + Shares(r+1)
    Delivery(r+1)                   ->  MaskedVector(r+1)
"""
