-- Named admin tokens (ADMIN-11).
CREATE TABLE volcano_locks.admin_token (
    number          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id              text   COLLATE "C" NOT NULL CONSTRAINT admin_token_id_taken UNIQUE,
    name            text   COLLATE "C" NOT NULL CONSTRAINT admin_token_name_taken UNIQUE,
    token_prefix    text   NOT NULL,
    created_at_ms   bigint NOT NULL,
    last_used_at_ms bigint,
    digest          bytea  NOT NULL CONSTRAINT admin_token_taken UNIQUE CHECK (octet_length(digest) = 32)
);
