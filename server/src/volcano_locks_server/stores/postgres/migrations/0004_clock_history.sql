-- What the node that last wrote the newest instant knew (LEASE-17): its instant mark_ms, the boot of its machine (empty:
-- unknown), how long that boot had lasted, and whether the database's clock agreed with its synchronised wall clock. A
-- node that does not know these columns leaves them as they are, and they are then older than now_ms.
ALTER TABLE volcano_locks.newest_instant
    ADD COLUMN mark_ms         bigint  NOT NULL DEFAULT 0,
    ADD COLUMN boot_id         text    NOT NULL DEFAULT '',
    ADD COLUMN boot_ms         bigint  NOT NULL DEFAULT 0,
    ADD COLUMN is_synchronised boolean NOT NULL DEFAULT false,
    -- The clock's latest jump: the instant after it, and the time that is not known to have passed; the sum of all
    -- jumps, and when the last of the leases from before the jump may be taken over.
    ADD COLUMN jumped_at_ms    bigint  NOT NULL DEFAULT 0,
    ADD COLUMN jumped_by_ms    bigint  NOT NULL DEFAULT 0 CHECK (jumped_by_ms >= 0),
    ADD COLUMN jumps_ms        bigint  NOT NULL DEFAULT 0 CHECK (jumps_ms >= 0),
    ADD COLUMN last_hold_ms    bigint  NOT NULL DEFAULT 0,
    -- How far new fencing tokens are ahead of the clock, because the clock was set back (LEASE-19).
    ADD COLUMN token_lead_ms   bigint  NOT NULL DEFAULT 0 CHECK (token_lead_ms >= 0);
