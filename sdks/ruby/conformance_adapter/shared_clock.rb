# frozen_string_literal: true

module Conformance
  # The client's clock over a real server; it moves the server's clock along. It also stops at the instants at which the
  # server has something to do. It continues when nothing is on its way: each activity of the client waits on the clock
  # or has an open request, and the runner reports these requests to be at rest.
  class SharedClock < VolcanoLocks::Testing::ManualClock
    def initialize(json_lines)
      super() { |seconds| json_lines.move_server(seconds) }
      @json_lines = json_lines
      @exchanged = 0
      @server_due = Float::INFINITY
    end

    def next_due
      [super, @server_due > now ? @server_due : Float::INFINITY].min
    end

    private

    def settled?
      before = busy
      state = @json_lines.network_state
      seconds = state.fetch("next_due_seconds")
      @server_due = seconds ? now + seconds : Float::INFINITY
      unchanged = state.fetch("exchanged") == @exchanged
      @exchanged = state.fetch("exchanged")
      now_busy = busy
      unchanged && state.fetch("at_rest") && [before.length, now_busy.length].uniq == [state.fetch("open_requests")] &&
        now_busy.all? { |activity| activity.thread&.status == "sleep" } && !unread?
    end

    # Whether bytes have arrived that their thread has not read yet: the runner counts them as delivered.
    def unread?
      ObjectSpace.each_object(BasicSocket).any? do |socket|
        socket.recv_nonblock(1, Socket::MSG_PEEK, exception: false).to_s.length == 1
      rescue IOError, SystemCallError
        false
      end
    end
  end
end
