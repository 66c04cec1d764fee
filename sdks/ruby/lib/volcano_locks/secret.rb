# frozen_string_literal: true

module VolcanoLocks
  # For objects that hold a secret: whatever shows, dumps or serialises an object in passing shows `inspect` (SDK-8).
  # Including classes define `inspect`; `to_record`, where there is one, is the way to store the secret on purpose.
  module Discreet
    # @return [String] the same as `inspect`
    def to_s
      inspect
    end

    # For `pp`.
    def pretty_print(printer)
      printer.text(inspect)
    end

    # For JSON: the text of `inspect`.
    def to_json(*state)
      inspect.to_json(*state)
    end

    # For frameworks that make JSON of instance variables.
    def as_json(*)
      inspect
    end

    # For YAML.
    def encode_with(coder)
      coder["inspect"] = inspect
    end

    # Never dumped in passing.
    def marshal_dump
      raise TypeError, "#{self.class} holds a secret and is not dumped"
    end
  end
end
