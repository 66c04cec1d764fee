# frozen_string_literal: true

module Conformance
  # The adapter protocol: JSON objects, one per line, over standard input and output.
  class JsonLines
    def initialize(input, output)
      @input = input
      @output = output
      @mutex = Mutex.new
    end

    # Run each verb and write its result, until the input ends.
    def run
      adapter = nil
      while (line = @input.gets)
        message = JSON.parse(line)
        adapter = Adapter.new(self) if adapter.nil? || message["verb"] == "open"
        write(result_of(adapter, message))
      end
    end

    # Have the runner move the server's clock. The runner is waiting for a verb's result, so its next line confirms
    # this.
    def move_server(seconds)
      @mutex.synchronize do
        write({ move_seconds: seconds })
        @input.gets
      end
    end

    # Ask whether everything is at rest between this process and the server, and when something is due there.
    def network_state
      @mutex.synchronize do
        write({ look: true })
        JSON.parse(@input.gets)
      end
    end

    private

    def result_of(adapter, message)
      { answer: adapter.do(message.fetch("verb"), message.fetch("args")) }
    rescue StandardError => e
      { crash: e.full_message(highlight: false) }
    end

    def write(message)
      @output.puts(JSON.generate(message))
      @output.flush
    end
  end
end
