"""Model engines under the product's own store code: SQLite's file, a PostgreSQL database, an etcd cluster."""
