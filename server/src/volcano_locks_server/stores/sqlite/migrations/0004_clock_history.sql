-- What is known about the time of newest_instant.now_ms (LEASE-17): the boot of the machine (empty: unknown), how long
-- that boot had lasted, and whether the clock agreed with a synchronised wall clock.
ALTER TABLE newest_instant ADD COLUMN boot_id TEXT NOT NULL DEFAULT '';
ALTER TABLE newest_instant ADD COLUMN boot_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE newest_instant ADD COLUMN is_synchronised INTEGER NOT NULL DEFAULT 0 CHECK (is_synchronised IN (0, 1));

-- The clock's latest jump: the instant after it, and the time that is not known to have passed; the sum of all jumps,
-- and when the last of the leases from before the jump may be taken over.
ALTER TABLE newest_instant ADD COLUMN jumped_at_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE newest_instant ADD COLUMN jumped_by_ms INTEGER NOT NULL DEFAULT 0 CHECK (jumped_by_ms >= 0);
ALTER TABLE newest_instant ADD COLUMN jumps_ms INTEGER NOT NULL DEFAULT 0 CHECK (jumps_ms >= 0);
ALTER TABLE newest_instant ADD COLUMN last_hold_ms INTEGER NOT NULL DEFAULT 0;

-- How far new fencing tokens are ahead of the clock, because the clock was set back (LEASE-19).
ALTER TABLE newest_instant ADD COLUMN token_lead_ms INTEGER NOT NULL DEFAULT 0 CHECK (token_lead_ms >= 0);
