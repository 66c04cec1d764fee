# frozen_string_literal: true

# Runs this client as a target of the conformance scenarios: reads one verb per line and writes one result per line.
#
#     -> {"verb": "open", "args": {"service_key": "sk-..."}}                                       <- {"answer": {}}
#     -> {"verb": "client", "args": {"actor": "ann", "api_url": "http://127.0.0.1:40123"}}         <- {"answer": {}}
#     -> {"verb": "acquire", "args": {"actor": "ann", "key": "k", "ttl_seconds": 30, "lease": "ann_1", "token": null}}
#     <- {"answer": {"expires_at_ms": 1767225630000, "fencing_token": 1767225600000}}
#     -> {"verb": "advance_ms", "args": {"value": 600000}}
#     <- {"move_seconds": 10.1}   -> {"moved": true}   ... once for each step of the clock ...     <- {"answer": {}}
#     -> {"verb": "close", "args": {}}                                                             <- {"answer": {}}
#
# conformance/README.md defines the protocol and the verbs of a client. `{"fake": true}` opens the fake that
# the client ships (SDK-10).

require "json"
require_relative "lib/volcano_locks/testing"
require_relative "conformance_adapter/shared_clock"
require_relative "conformance_adapter/tasks"
require_relative "conformance_adapter/results"
require_relative "conformance_adapter/lease_verbs"
require_relative "conformance_adapter/feature_verbs"
require_relative "conformance_adapter/adapter"
require_relative "conformance_adapter/json_lines"

# Failed releases are part of the scenarios.
VolcanoLocks.logger = nil
Conformance::JsonLines.new($stdin, $stdout).run
