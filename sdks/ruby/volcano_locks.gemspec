# frozen_string_literal: true

require_relative "lib/volcano_locks/version"

Gem::Specification.new do |spec|
  spec.name = "volcano_locks"
  spec.version = VolcanoLocks::VERSION
  spec.summary = "Client of the volcano-locks service: hold a lease, keep it renewed, learn of its loss"
  spec.description = "Elect one holder for a piece of work, keep its lease renewed while the work runs, learn of its " \
                     "loss, and have late writes refused. Standard library only."
  spec.authors = ["The volcano-locks authors"]
  spec.license = "Apache-2.0"
  spec.required_ruby_version = ">= 3.1"
  spec.files = Dir.chdir(__dir__) { Dir["lib/**/*.rb", "sig/**/*", "README.md", "LICENSE", ".yardopts"] }
  spec.require_paths = ["lib"]
  spec.metadata["rubygems_mfa_required"] = "true"
end
