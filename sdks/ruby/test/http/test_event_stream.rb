# frozen_string_literal: true

require_relative "../test_helper"

class TestEventStream < Minitest::Test
  include TestHelper

  # A slow reader makes the request thread wait, so that memory stays bounded.
  def test_real_time_unread_bytes_are_bounded
    stream = EventStream.new(Request.new(verb: "GET", path: "/", headers: {}, timeout_seconds: 1.0), SystemClock.new)
    sent = 0
    transport = ->(_request) { flunk }
    transport.define_singleton_method(:stream) do |_request, &on_bytes|
      loop do
        on_bytes.call("x" * 10_000)
        sent += 1
      end
    end
    worker = quiet_thread { stream.run(transport) }
    eventually { sent == 6 }
    sleep 0.02
    assert_equal 6, sent
    assert_equal 70_000, stream.read(Float::INFINITY).bytesize
    eventually { sent > 6 }
    stream.cancel
    worker.join(PATIENCE_SECONDS)
  end
end
