# frozen_string_literal: true

# This client as a face of the conformance book: a process that is told one verb a line and answers one line each.
#
#     -> {"verb": "open", "args": {"api_url": "http://127.0.0.1:7420", "service_key": "sk-..."}}   <- {"answer": {}}
#     -> {"verb": "acquire", "args": {"actor": "ann", "key": "k", "ttl_seconds": 30, "lease": "ann_1", "token": null}}
#     <- {"answer": {"expires_at_ms": 1767225630000, "fencing_token": 1767225600000}}
#     -> {"verb": "advance_ms", "args": {"value": 600000}}
#     <- {"move_seconds": 10.1}   -> {"moved": true}   ... as often as time stops on the way ...   <- {"answer": {}}
#     -> {"verb": "close", "args": {}}                                                             <- {"answer": {}}
#
# The protocol is told in conformance/README.md: verbs, arguments and answers are those of the client's side there; the
# server's own (`restart`, `purge`) are its owner's. `{"fake": true}` instead of an address opens the fake that the
# client ships (SDK-10).
#
# A verb runs in a thread of its own. While it waits for something, time goes by: the clock is moved to the next instant
# that anybody waits for, since nobody else would move it.

require "json"
require_relative "lib/volcano_locks/testing"

# What the face is made of.
module Conformance
  include VolcanoLocks

  OPERATIONS = {
    %w[POST lease] => "acquire", %w[PATCH lease] => "renew", %w[DELETE lease] => "release",
    %w[GET lock] => "get", %w[DELETE lock] => "force_release"
  }.freeze
  STREAM = "stream"
  STREAM_TYPE = "text/event-stream"
  KINDS = [*OPERATIONS.values, STREAM].freeze
  ANSWERS = {
    "answer_503" => [503, "lock_service_unavailable"], "answer_500" => [500, "internal"],
    "answer_429" => [429, "lock_rate_limited"], "answer_403" => [403, "missing_permission"],
    "answer_503_empty" => [503, nil]
  }.freeze
  RETRY_AFTER_STATUSES = [429, 503].freeze

  FOREVER = "forever"
  ARRIVAL_SECONDS_MAX = 10
  LOOK_SECONDS = 0.002

  # Seconds as the book writes them.
  def self.seconds_of(told)
    told == FOREVER ? Float::INFINITY : told
  end

  # Return once it is so, or real time is over.
  def self.until
    give_up = Process.clock_gettime(Process::CLOCK_MONOTONIC) + ARRIVAL_SECONDS_MAX
    sleep(LOOK_SECONDS) until yield || Process.clock_gettime(Process::CLOCK_MONOTONIC) > give_up
  end

  # The clock over a real server. Once a request has waited in a line there, time stops for what is due at the server
  # too, and goes on when the server is at rest: when all that is under way waits.
  class SharedClock < VolcanoLocks::Testing::ManualClock
    AGAIN_SECONDS = 0.001

    def initialize(conversation)
      super() { |seconds| conversation.ask_to_move(seconds) }
      @conversation = conversation
      @counting = Mutex.new
      @under_way = @changes = 0
      @waits = false
      @server_due = Float::INFINITY
    end

    def next_due
      [super, @server_due > now ? @server_due : Float::INFINITY].min
    end

    def settle
      loop do
        changes = @changes
        super
        return unless @waits

        told = @conversation.ask_to_look(@under_way)
        seconds = told.fetch("next_due_seconds")
        @server_due = seconds ? now + seconds : Float::INFINITY
        # An answer that came since may have woken somebody.
        return if told.fetch("at_rest") && changes == @changes

        sleep(AGAIN_SECONDS)
      end
    end

    # What the request gives. One that may wait in a line does so in a thread beside: this one rests on the clock.
    def carrying(may_wait, &request)
      counted { may_wait ? beside(&request) : yield }
    end

    # A stream, which is under way until the block has called what it is given.
    def opening
      @waits = true
      counted = [1]
      begun = -> { count(-counted.shift) unless counted.empty? }
      count(1)
      yield begun
    ensure
      begun.call
    end

    private

    def beside(&request)
      @waits = true
      over = VolcanoLocks::Signal.new
      thread = Thread.new do
        Thread.current.report_on_exception = false
        request.call
      ensure
        over.set
      end
      begin
        wait(Float::INFINITY, over) until over.set?
        thread.value
      ensure
        thread.kill.join unless over.set?
      end
    end

    # Counted before it can rest, and until it is awake.
    def counted
      count(1)
      yield
    ensure
      count(-1)
    end

    def count(one)
      @counting.synchronize do
        @under_way += one
        @changes += 1
      end
    end
  end

  # Trouble that the scenario tells of, shared by all actors.
  class Outages
    Outage = Struct.new(:kind, :left, :of, :actor, :delay_ms, :retry_after_seconds, :answer)
    NONE = Outage.new("none")

    def initialize
      @mutex = Mutex.new
      @told = []
    end

    def tell(args)
      outage = Outage.new(args.fetch("kind"), args.fetch("count", Float::INFINITY), args.fetch("of", KINDS),
                          args["actor"], args.fetch("delay_ms", 0), args.fetch("retry_after_seconds", 1),
                          args["answer"])
      @mutex.synchronize { @told << outage }
    end

    def end
      @mutex.synchronize { @told.clear }
    end

    def striking(operation, actor)
      @mutex.synchronize do
        found = @told.find do |one|
          one.left.positive? && one.of.include?(operation) && [nil, actor].include?(one.actor)
        end
        found.left -= 1 if found
        found || NONE
      end
    end
  end

  # A stream read in a thread beside, until its connection is cut. Who waits for its end rests on the clock.
  class Followed
    def initialize(clock)
      @clock = clock
      @over = VolcanoLocks::Signal.new
      @cut = false
    end

    def cut
      @cut = true
      @over.set
    end

    # What the stream gives in the end.
    def run(&stream)
      thread = Thread.new do
        Thread.current.report_on_exception = false
        stream.call
      ensure
        @over.set
      end
      @clock.wait(Float::INFINITY, @over) until @over.set?
      raise Errno::ECONNRESET if @cut

      thread.value
    ensure
      thread.kill
    end
  end

  # One actor's way to the server: a transport. Time on the way is waited for on the clock.
  class Network
    Sent = Struct.new(:operation, :token, :request_id)

    def initialize(actor, inner, clock, outages)
      @actor = actor
      @inner = inner
      @clock = clock
      @outages = outages
      @mutex = Mutex.new
      @sent = []
      @streams = []
    end

    # What was sent since this was last asked.
    def sent
      @mutex.synchronize { @sent.slice!(0..) }
    end

    def call(request)
      outage = outage_of(request, OPERATIONS.fetch([request.verb, request.path.end_with?("/lease") ? "lease" : "lock"]))
      before(outage, request) || after(outage, served(outage, request))
    end

    def stream(request, &heard)
      before(outage_of(request, STREAM), request) || followed(request, &heard)
    end

    # Break the connections of all streams.
    def cut
      @mutex.synchronize { @streams.dup }.each(&:cut)
    end

    private

    def outage_of(request, operation)
      @mutex.synchronize { @sent << Sent.new(operation, request.token, request.request_id) }
      @outages.striking(operation, @actor)
    end

    def followed(request)
      stream = Followed.new(@clock)
      @mutex.synchronize { @streams << stream }
      opening do |begun|
        stream.run do
          @inner.stream(request) do |bytes|
            yield bytes
            begun.call
          end
        end
      end
    ensure
      @mutex.synchronize { @streams.delete(stream) }
    end

    def opening(&work)
      @clock.is_a?(SharedClock) ? @clock.opening(&work) : yield(-> {})
    end

    # An answer that comes from somewhere on the way; nil where the request goes on.
    def before(outage, request)
      case outage.kind
      when *ANSWERS.keys then scripted(outage)
      when "answer_page" then VolcanoLocks::Response.new(502, {}, "<html>Bad Gateway</html>")
      when "drop_before"
        raise VolcanoLocks::TransportError.new("no connection", request_sent: false, request_id: request.request_id)
      when "reset" then raise Errno::ECONNRESET
      when "hang_before" then wait(Float::INFINITY)
      when "delay_before" then wait(outage.delay_ms / 1000.0)
      end
    end

    def served(outage, request)
      answer = forwarded(request)
      outage.kind == "duplicate" ? forwarded(request) : answer
    end

    def forwarded(request)
      return @inner.call(request) unless @clock.is_a?(SharedClock)

      may_wait = !request.body.nil? && JSON.parse(request.body).key?("wait_seconds")
      @clock.carrying(may_wait) { @inner.call(request) }
    end

    def after(outage, answer)
      case outage.kind
      when "altered" then return altered(answer, outage.answer)
      when "drop_after" then raise Errno::ECONNRESET
      when "hang_after" then wait(Float::INFINITY)
      when "delay_after" then wait(outage.delay_ms / 1000.0)
      end
      answer
    end

    def altered(answer, fields)
      VolcanoLocks::Response.new(answer.status, answer.headers, JSON.generate(JSON.parse(answer.body).merge(fields)))
    end

    def scripted(outage)
      status, code = ANSWERS.fetch(outage.kind)
      return VolcanoLocks::Response.new(status, {}, "") if code.nil?

      headers = RETRY_AFTER_STATUSES.include?(status) ? { "retry-after" => outage.retry_after_seconds.to_s } : {}
      VolcanoLocks::Response.new(status, headers, JSON.generate({ error: "this answer was scripted", code: code }))
    end

    def wait(seconds)
      until_ = @clock.now + seconds
      signal = VolcanoLocks::Signal.new
      @clock.wait(until_, signal) while @clock.now < until_
      nil
    end
  end

  class BodyError < StandardError; end
  class BodyCancelled < StandardError; end

  # A thread that does one thing for an actor. As the clock sees it, it is at rest while it waits on the clock.
  class Doing
    NOTICING_SECONDS_MAX = 10

    attr_reader :thread

    def initialize(clock, &work)
      @thread = Thread.new(&work)
      @thread.report_on_exception = false
      clock.watch(self)
    end

    def over?
      !@thread.alive?
    end

    # What the work gave, or raised.
    def result
      @thread.value
    end

    # Interrupt it. As long as it has not noticed, the clock takes it for resting; so it is given time to end by itself.
    def break_off
      @thread.raise(BodyCancelled)
      @thread.join(NOTICING_SECONDS_MAX)
    rescue BodyCancelled
      nil
    end
  end

  # A `with_lock` whose body waits to be ended.
  class Block
    attr_reader :guard

    def initialize(locks, clock, key, **options)
      @ending = VolcanoLocks::Signal.new
      @how = nil
      @doing = Doing.new(clock) do
        locks.with_lock(key, **options) do |guard|
          @guard = guard
          clock.wait(Float::INFINITY, @ending) until @ending.set?
          raise BodyError, "the body's own error" if @how == "raises"

          Thread.current.raise(BodyCancelled) if @how == "cancelled"
        end
      end
    end

    def begun?
      !@guard.nil? || over?
    end

    def over?
      @doing.over?
    end

    def end(how)
      @how = how
      @ending.set
    end

    def result
      @doing.result
    end

    # End a body that nobody has ended.
    def forget
      @doing.thread.kill.join
    rescue BodyError, BodyCancelled, VolcanoLocks::VolcanoError # told when the block was left
      nil
    end
  end

  # A `lead` whose block runs until it is told to end.
  class Campaign
    RESULT = "the block's result"

    attr_reader :starts, :ends, :fencing_token, :doing

    def initialize(locks, clock, key, ttl)
      @clock = clock
      @starts = @ends = 0
      @how = nil
      @wake = VolcanoLocks::Signal.new
      @doing = Doing.new(clock) { locks.lead(key, ttl: ttl) { |guard| run(guard) } }
    end

    # End it; as a language without `signal` can, from outside by an interrupt.
    def end(how)
      @how = how
      how == "cancelled" ? @doing.break_off : @wake.set
    end

    def result
      given = @doing.result
      raise "lead gives #{given.inspect}" unless given == RESULT
    end

    # End a block that nobody has ended.
    def forget
      @doing.thread.kill.join
    rescue BodyError, BodyCancelled, VolcanoLocks::VolcanoError # told when it was ended
      nil
    end

    private

    def run(guard)
      raise "two runs of one campaign overlap" if @starts != @ends
      raise "the block starts with a lease that is lost" if guard.lost?

      @starts += 1
      @fencing_token = guard.fencing_token
      begin
        wait_for_its_end(guard)
      ensure
        @ends += 1
      end
    end

    def wait_for_its_end(guard)
      wake = @wake = VolcanoLocks::Signal.new
      Doing.new(@clock) { guard.wait_lost && wake.set }
      @clock.wait(Float::INFINITY, wake) until wake.set?
      raise BodyError, "the block's own error" if @how == "raises"

      RESULT
    end
  end

  # What the answers are made of.
  module Told
    private

    def sent_told(sent)
      KINDS.to_h { |operation| [operation, sent.count { |one| one.operation == operation }] }
           .merge(tokens: sent.filter_map(&:token).uniq.length, request_ids: sent.map(&:request_id).uniq.length)
    end

    def view_told(view)
      dates = { acquired_at_ms: view.acquired_at, renewed_at_ms: view.renewed_at, expires_at_ms: view.expires_at }
      { held: view.held?, holder: view.holder, fencing_token: view.fencing_token, ttl_seconds: view.ttl_seconds,
        waiters: view.waiters, **dates.compact.transform_values { |date| ms_of(date) } }
    end

    def change_told(change)
      { held: change.held?, holder: change.holder, fencing_token: change.fencing_token,
        at_ms: change.since && ms_of(change.since) }
    end

    def told(lease)
      { expires_at_ms: ms_of(lease.expires_at), fencing_token: lease.fencing_token }
    end

    def ms_of(time)
      (time.to_r * 1000).to_i
    end

    def failure(error)
      { error: code_of(error), error_classes: classes_of(error), retry_after_seconds: error.retry_after }.compact
    end

    def classes_of(error)
      error.class.ancestors.grep(Class).map { |kind| kind.name.split("::").last }
    end

    def code_of(error)
      return "no_answer" if error.is_a?(VolcanoLocks::TransportError)
      return error.code if error.code

      error.is_a?(VolcanoLocks::ServerError) ? "bad_answer" : raise(error)
    end

    def attached_to(error)
      first = VolcanoLocks.attached_errors(error).first
      first ? { attached: first.class.name.split("::").last } : {}
    end
  end

  # Who plays, each made when first named.
  module Cast
    private

    def network(actor)
      @networks[actor] ||= Network.new(actor, @inner, @clock, @outages)
    end

    def client(actor)
      @clients[actor] ||= VolcanoLocks::Client.new(**@address, holder: actor, clock: @clock, transport: network(actor))
    end

    def locks(args)
      client(args.fetch("actor")).locks
    end

    def lease(args)
      @leases.fetch(args.fetch("lease"))
    end
  end

  # The verbs of a lease.
  module Leasing
    def acquire(args)
      answer = keep(args, blocking { acquired(args) })
      args["spelling"] ? { **answer, ids_kept: lease(args).token == args.fetch("token") } : answer
    rescue VolcanoLocks::VolcanoError => e
      raise unless args["spelling"]

      { **failure(e), ids_kept: e.request_id == args.fetch("request_id") }
    end

    def renew(args)
      checking_arguments(args) do
        keep(args, blocking { locks(args).renew(*key_and_lease(args), ttl: args.fetch("ttl_seconds")) })
      end
    end

    def release(args)
      checking_arguments(args) do
        blocking { locks(args).release(*key_and_lease(args)) }
        {}
      end
    end

    private

    # A lease that is known is acquired with its token, unless the scenario gives that token in another spelling.
    def acquired(args)
      known = @leases[args.fetch("lease")]&.token
      token = args["spelling"] ? args.fetch("token") : known || args["token"]
      locks(args).acquire(args.fetch("key"), ttl: args.fetch("ttl_seconds"), token: token,
                                             request_id: args["request_id"], **wait_of(args))
    end

    # The first two arguments of renew and release, wrong if the scenario asks for that.
    def key_and_lease(args)
      case args["given"]
      when "another_key" then ["#{args.fetch('key')}-another", lease(args)]
      when "no_lease" then [args.fetch("key"), { ttl: 30 }]
      else [args.fetch("key"), lease(args)]
      end
    end

    # Only a wrong call is answered by the code for it: any other argument error is a fault.
    def checking_arguments(args)
      yield
    rescue ArgumentError, TypeError
      raise unless args["given"]

      { error: "argument" }
    end

    def keep(args, lease)
      @leases[args.fetch("lease")] = lease
      told(lease)
    end
  end

  # The verbs of those who watch or lead, and of functions made exclusive.
  module WatchingAndLeading
    def watch(args)
      seen = Queue.new
      doing = Doing.new(@clock) { locks(args).watch(args.fetch("key")) { |change| seen << change } }
      @watches[place(args)] = [doing, seen]
      Conformance.until { !seen.empty? || doing.over? }
      @clock.settle
      {}
    end

    # The changes seen since this was last asked.
    def watched(args)
      @clock.settle
      doing, seen = @watches.fetch(place(args))
      Conformance.until { seen.length >= args.fetch("count", 0) || doing.over? }
      doing.result if doing.over?
      { changes: Array.new(seen.length) { change_told(seen.pop) } }
    end

    def cut(args)
      network(args.fetch("actor")).cut
      @clock.settle
      {}
    end

    def lead(args)
      @campaigns[place(args)] = Campaign.new(locks(args), @clock, args.fetch("key"), args.fetch("ttl_seconds"))
      @clock.settle
      {}
    end

    def leading(args)
      @clock.settle
      campaign = @campaigns.fetch(place(args))
      Conformance.until do
        campaign.starts >= args.fetch("starts", 0) && campaign.ends >= args.fetch("ends", 0)
      end
      @clock.settle
      { starts: campaign.starts, ends: campaign.ends, fencing_token: campaign.fencing_token }.compact
    end

    def resign(args)
      campaign = @campaigns.fetch(place(args))
      campaign.end(args.fetch("body", "returns"))
      until_over { campaign.doing.over? }
      campaign.result
      {}
    end

    # A call of a block that was made exclusive.
    def call(args)
      ran = { ran: false }
      options = { ttl: args.fetch("ttl_seconds"), on_held: args.fetch("on_held", "raise"),
                  hold_at_least: args["hold_at_least_seconds"] }
      function = locks(args).exclusive("{name}", **options) do |name:, guard:|
        ran = { ran: name == args.fetch("key"), fencing_token: guard.fencing_token }
        raise BodyError, "the block's own error" if args["body"] == "raises"
      end
      blocking { function.call(name: args.fetch("key")) }
      ran
    end
  end

  # The verbs. Each gives its answer as a hash.
  class Face
    include Told
    include Cast
    include Leasing
    include WatchingAndLeading

    VERBS = %w[open now_ms advance_ms pause_ms outage outage_ends sent acquire renew release get force_release race
               wait waited hang_up view list enter guard exit watch watched cut lead leading resign call
               close].freeze

    def initialize(conversation)
      @conversation = conversation
      @outages = Outages.new
      @networks = {}
      @clients = {}
      @leases = {}
      @blocks = {}
      @waits = {}
      @watches = {}
      @campaigns = {}
    end

    def do(verb, args)
      raise ArgumentError, "this face does not know #{verb}" unless VERBS.include?(verb)

      public_send(verb, args)
    rescue VolcanoLocks::VolcanoError => e
      failure(e)
    rescue BodyError => e
      { error: "body", **attached_to(e) }
    rescue BodyCancelled => e
      { error: "cancelled", **attached_to(e) }
    end

    def open(args)
      if args["fake"]
        @clock = VolcanoLocks::Testing::ManualClock.new
        @inner = VolcanoLocks::Testing::FakeLocks.new(@clock)
      else
        @clock = SharedClock.new(@conversation)
        @inner = VolcanoLocks::HttpTransport.new(args.fetch("api_url"))
      end
      @address = { api_url: args.fetch("api_url", VolcanoLocks::Testing::FakeLocks::URL),
                   service_key: args.fetch("service_key", VolcanoLocks::Testing::FakeLocks::SERVICE_KEY) }
      {}
    end

    def now_ms(_args)
      { now_ms: ms_of(@clock.utc_now) }
    end

    def advance_ms(args)
      @clock.advance(args.fetch("value") / 1000.0)
      {}
    end

    def pause_ms(args)
      @clock.jump(args.fetch("value") / 1000.0)
      @clock.settle
      {}
    end

    def outage(args)
      @outages.tell(args)
      {}
    end

    def outage_ends(_args)
      @outages.end
      {}
    end

    def sent(args)
      sent_told(network(args.fetch("actor")).sent)
    end

    # An acquire that waits while others act.
    def wait(args)
      @waits[place(args)] = Doing.new(@clock) { acquired(args).tap { |lease| keep(args, lease) } }
      @clock.settle
      {}
    end

    def waited(args)
      @clock.settle
      doing = @waits.fetch(place(args))
      doing.over? ? told(doing.result) : { pending: true }
    end

    def hang_up(args)
      doing = @waits.fetch(place(args))
      doing.break_off
      until_over { doing.over? }
      {}
    end

    def view(args)
      view_told(blocking { locks(args).view(args.fetch("key")) })
    end

    def list(args)
      state = args.fetch("state", "all")
      { keys: blocking { locks(args).list(args.fetch("prefix", ""), state: state).map(&:key) } }
    end

    def get(args)
      state = blocking { locks(args).get(args.fetch("key")) }
      state.held? ? { held: true, **told(state) } : { held: false }
    end

    def force_release(args)
      blocking { locks(args).force_release(args.fetch("key")) }
      {}
    end

    def race(args)
      racers = args.fetch("tokens").map do |token|
        Doing.new(@clock) { acquired_or_code(args, token) }
      end
      until_over { racers.all?(&:over?) }
      leases, codes = racers.map(&:result).partition { |one| one.is_a?(VolcanoLocks::Lease) }
      { granted: leases.length, refused: codes.tally, **(leases.empty? ? {} : told(leases.first)) }
    end

    def enter(args)
      options = { ttl: args.fetch("ttl_seconds"), token: args["token"], request_id: args["request_id"],
                  hold_at_least: args["hold_at_least_seconds"] }
      block = Block.new(locks(args), @clock, args.fetch("key"), **options, **wait_of(args))
      until_over { block.begun? }
      block.result if block.over?
      @blocks[place(args)] = block
      guard(args)
    end

    def guard(args)
      guard = @blocks.fetch(place(args)).guard
      { lost: guard.lost?, **told(guard.lease) }
    end

    def exit(args)
      block = @blocks.fetch(place(args))
      block.end(args.fetch("body", "returns"))
      until_over { block.over? }
      block.result
      {}
    end

    def close(_args)
      @clients.each_value(&:close)
      [*@blocks.values, *@campaigns.values].each(&:forget)
      {}
    end

    private

    # What the work gives: in a thread, while time goes by.
    def blocking(&work)
      doing = Doing.new(@clock, &work)
      until_over { doing.over? }
      doing.result
    end

    def until_over
      loop do
        @clock.settle
        return if yield
        raise "waits for nothing that will come" if @clock.next_due == Float::INFINITY

        @clock.advance(@clock.next_due - @clock.now)
      end
    end

    def acquired_or_code(args, token)
      client("racers").locks.acquire(args.fetch("key"), ttl: args.fetch("ttl_seconds"), token: token, **wait_of(args))
    rescue VolcanoLocks::VolcanoError => e
      code_of(e)
    end

    def wait_of(args)
      { wait: Conformance.seconds_of(args["wait_seconds"]) }
    end

    def place(args)
      args.values_at("actor", "key")
    end
  end

  # Lines in and out.
  class Conversation
    def initialize(input, output)
      @input = input
      @output = output
      @mutex = Mutex.new
    end

    def run
      face = nil
      while (line = @input.gets)
        asked = JSON.parse(line)
        face = Face.new(self) if face.nil? || asked["verb"] == "open"
        say(answer_of(face, asked))
      end
    end

    # Ask for the server's clock to be moved. The one who asks for verbs is waiting, so the next line is the answer.
    def ask_to_move(seconds)
      @mutex.synchronize do
        say({ move_seconds: seconds })
        @input.gets
      end
    end

    # How the server stands while so many requests are under way.
    def ask_to_look(under_way)
      @mutex.synchronize do
        say({ under_way: under_way })
        JSON.parse(@input.gets)
      end
    end

    private

    def answer_of(face, asked)
      { answer: face.do(asked.fetch("verb"), asked.fetch("args")) }
    rescue StandardError => e
      { crash: e.full_message(highlight: false) }
    end

    def say(message)
      @output.puts(JSON.generate(message))
      @output.flush
    end
  end
end

# A release that fails is part of the play.
VolcanoLocks.logger = nil
Conformance::Conversation.new($stdin, $stdout).run
