"""Names of the files that a member of secure aggregation keeps in its folder."""

from __future__ import annotations

IDENTITY_FILE, ROSTER_FILE, POLICY_FILE = "identity.toml", "roster.toml", "policy.toml"
