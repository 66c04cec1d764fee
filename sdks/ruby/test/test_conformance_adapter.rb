# frozen_string_literal: true

require "json"
require "minitest/autorun"
require "rbconfig"

# The adapter protocol. The scenarios themselves are run by conformance/.
class TestConformanceAdapter < Minitest::Test
  ADAPTER = File.expand_path("../conformance-adapter.rb", __dir__)

  def setup
    @process = IO.popen([{ "RUBYOPT" => nil, "RUBYLIB" => nil }, RbConfig.ruby, "-w", ADAPTER], "r+")
    ask("open", fake: true)
    %w[ann bob].each { |actor| ask("client", actor: actor) }
  end

  def teardown
    @process.close
  end

  def test_the_verbs_of_a_block_that_loses_its_lock
    block = { actor: "ann", key: "k" }
    entered = ask("enter", **block, ttl_seconds: 30, lease: "ann_1", token: nil)
    shown = { "lost" => false, "expires_at_ms" => 1_767_225_630_000, "fencing_token" => 1_767_225_600_000 }
    assert_equal shown, entered
    ask("advance_ms", value: 100_000)
    refused = ask("acquire", actor: "bob", key: "k", ttl_seconds: 30, lease: "bob_1", token: nil)
    assert_equal ["lock_held", %w[LockHeldError ConflictError VolcanoError StandardError]],
                 [refused["error"], refused["error_classes"].first(4)]
    assert_equal({}, ask("force_release", actor: "bob", key: "k"))
    ask("advance_ms", value: 30_000)
    assert ask("guard", **block)["lost"]
    assert_equal({ "error" => "body", "attached" => "LockOwnershipLostError" }, ask("exit", **block, body: "raises"))
    assert_equal({ "now_ms" => 1_767_225_730_000 }, ask("now_ms"))
    assert_equal({}, ask("close"))
  end

  def test_an_unknown_verb_is_a_crash
    @process.puts(JSON.generate({ verb: "instance_eval", args: {} }))
    assert_match(/unknown verb/, JSON.parse(@process.gets).fetch("crash"))
  end

  private

  def ask(verb, **args)
    @process.puts(JSON.generate({ verb: verb, args: args }))
    JSON.parse(@process.gets).fetch("answer")
  end
end
