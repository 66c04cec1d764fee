# frozen_string_literal: true

require_relative "../test_helper"

# SDK-14: server-sent events from the bytes of their stream.
class TestSseParser < Minitest::Test
  include TestHelper

  def test_events_are_parsed_from_pieces_of_any_size
    text = ": hello\nid: 1-5\nretry: 1000\n\n: still here\n\nid: 1-6\r\nevent: acquired\r\ndata: {\"holder\":\r\n" \
           "data:\"höst\"}\r\n\r\nid: \u0001\nevent: x\ndata\n\nevent: cut off"
    whole = [["", "", "1-5"], ["acquired", "{\"holder\":\n\"höst\"}", "1-6"], ["x", "", nil]]
    [1, 2, 3, 7, 1000].each do |size|
      parser = SseParser.new
      events = text.b.scan(/.{1,#{size}}/mn).flat_map { |piece| parser.feed(piece) }
      assert_equal whole, events.map(&:to_a)
    end
    assert_equal({ "holder" => "höst" }, ServerSentEvent.new("acquired", whole[1][1], nil).body)
    ["", "[]", "{"].each { |data| assert_equal({}, ServerSentEvent.new("acquired", data, nil).body) }
  end

  def test_an_event_that_is_too_long_is_refused
    [["data: #{'x' * SseParser::EVENT_BYTES_MAX}"], ["data: #{'x' * 40_000}\n"] * 2].each do |pieces|
      parser = SseParser.new
      assert_raises(SseParser::TooLongError) { pieces.each { |piece| parser.feed(piece) } }
    end
  end
end
