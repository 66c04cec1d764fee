# frozen_string_literal: true

require_relative "../test_helper"
require_relative "../socket_server"
require "openssl"
require "tmpdir"

# How a response is read from its connection, and how one is opened.
class TestConnection < Minitest::Test
  include TestHelper

  FREE = '{"held":false}'
  VARIABLES = %w[http_proxy HTTP_PROXY https_proxy no_proxy NO_PROXY REQUEST_METHOD SSL_CERT_FILE].freeze

  def setup
    @server = SocketServer.new(Testing::FakeLocks.new)
    @client = Client.new(api_url: @server.url, service_key: "sk-x", timeout: 5)
    @variables = ENV.to_h.slice(*VARIABLES)
    VARIABLES.each { |name| ENV.delete(name) }
  end

  def teardown
    VARIABLES.each { |name| ENV[name] = @variables[name] }
    @client.close
    @server.close
  end

  def test_every_framing_of_a_body_is_read_and_only_a_framed_one_keeps_its_connection
    { "HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n#{FREE}" => 1,
      "HTTP/1.1 200 OK\nCONTENT-LENGTH:14\n\n#{FREE}" => 1,
      "HTTP/1.1 200\r\nTransfer-Encoding: Chunked\r\n\r\n7;a=b\r\n{\"held\"\r\n7\r\n:false}\r\n0\r\nX: y\r\n\r\n" => 1,
      "HTTP/1.1 100 Go\r\n\r\nHTTP/1.1 103 Early\r\nA: b\r\n\r\n" \
      "HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n#{FREE}" => 1,
      "HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 14\r\n\r\n#{FREE}" => 2,
      "HTTP/1.0 200 OK\r\nContent-Length: 14\r\n\r\n#{FREE}" => 2,
      ["HTTP/1.1 200 OK\r\n\r\n#{FREE}"] => 2 }.each do |raw, connections|
      before = @server.connections
      2.times { @server.script << answer(raw, step: 3) }
      2.times { refute_predicate @client.locks.get(KEY), :held?, raw }
      assert_operator @server.connections - before, :<=, connections, raw
      @server.close_connections
    end
  end

  def test_a_response_that_breaks_http_is_a_transport_error
    ["HTTP/2 200 OK\r\n\r\n", "HTTP/1.1 20 OK\r\n\r\n", "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
     "HTTP/1.1 200 OK\r\nContent-Length: 14, 15\r\n\r\n#{FREE}", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
     "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "HTTP/1.1 200 OK\r\nA: #{'a' * 100_000}\r\n\r\n",
     "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
     "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1#{';' * 5_000}",
     "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n",
     "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n#{"2000\r\n#{'a' * 8192}\r\n" * 9}0\r\n\r\n",
     "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab", "\xff\xfe\r\n\r\n"].each do |raw|
      2.times { @server.script << raw.b }
      error = assert_raises(TransportError, raw[0, 60]) { @client.locks.get(KEY) }
      assert_predicate error, :request_sent?
    end
    refute_predicate @client.locks.get(KEY), :held?
  end

  # case 83, SDK-9
  def test_a_request_id_that_a_proxy_doubles_is_compared_by_its_first_value
    id = REQUEST_ID.swapcase
    ["X-Volcano-Request-Id: #{id}\r\nx-volcano-request-id: #{id}\r\n", "X-Volcano-Request-Id: #{id}, #{TOKEN}\r\n",
     "X-Volcano-Request-Id: #{id}\r\nX-Volcano-Request-Id: #{TOKEN}\r\n"].each do |headers|
      @server.script << "HTTP/1.1 200 OK\r\n#{headers}Content-Length: 14\r\n\r\n#{FREE}"
      before = @server.requests.length
      refute_predicate @client.locks.get(KEY, request_id: REQUEST_ID), :held?, headers
      assert_equal before + 1, @server.requests.length, "the response counts: #{headers}"
    end
    2.times do
      @server.script << "HTTP/1.1 200 OK\r\nX-Volcano-Request-Id: #{TOKEN}, #{id}\r\nContent-Length: 14\r\n\r\n#{FREE}"
    end
    assert_raises(TransportError) { @client.locks.get(KEY, request_id: REQUEST_ID) }
  end

  # case 56: a dead proxy is no obstacle to a server on loopback
  def test_a_loopback_address_and_no_proxy_bypass_the_proxy
    ENV["HTTP_PROXY"] = ENV["http_proxy"] = dead_url
    refute_predicate @client.locks.get(KEY), :held?
    with_localhost = Client.new(api_url: @server.url.sub("127.0.0.1", "localhost"), service_key: "sk-x")
    refute_predicate with_localhost.locks.get(KEY), :held?
    ENV["NO_PROXY"] = "other.invalid,locks.invalid"
    error = assert_raises(TransportError) { client_behind_proxy.locks.get(KEY) }
    assert_includes error.message, "cannot connect to locks.invalid port 7420: "
    refute_includes error.message, "proxy"
  end

  def test_a_connection_that_the_server_resets_is_a_transport_error_also_in_the_callers_thread
    reset = lambda do |connection|
      connection.setsockopt(Socket::SOL_SOCKET, Socket::SO_LINGER, [1, 0].pack("ii"))
      connection.close
      false
    end
    @client.locks.get(KEY)
    @server.script.concat([reset, reset])
    assert_match(/ECONNRESET/, assert_raises(TransportError) { @client.locks.get(KEY) }.message)
    @client.locks.get(KEY)
    @server.script << reset
    refute_predicate @client.locks.get(KEY), :held?
  end

  # case 56
  def test_no_proxy_may_name_all_hosts
    ENV["http_proxy"] = dead_url
    ENV["NO_PROXY"] = "*"
    refute_includes assert_raises(TransportError) { client_behind_proxy.locks.get(KEY) }.message, "proxy"
  end

  # SDK-8
  def test_a_malformed_proxy_is_named_without_its_password
    ENV["http_proxy"] = "http://user:pa s3cret@proxy:3128"
    error = assert_raises(TransportError) { client_behind_proxy.locks.get(KEY) }
    assert_includes error.message, "http_proxy must be like http://proxy.example.com:3128"
    refute_includes error.full_message, "s3cret"
  end

  def test_an_error_through_a_proxy_names_it
    ENV["HTTP_PROXY"] = dead_url.sub("//", "//user:secret@")
    error = assert_raises(TransportError) { client_behind_proxy.locks.get(KEY) }
    address = dead_url.delete_prefix("http://")
    assert_includes error.message, "cannot connect to locks.invalid port 7420 through the proxy #{address}: "
    assert_match(/Errno::ECONNREFUSED: .*NO_PROXY/, error.message)
    refute_includes error.message, "secret"
    refute_predicate error, :request_sent?
    ENV["HTTP_PROXY"] = @server.url
    address = @server.url.delete_prefix("http://")
    @server.script << "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n"
    error = assert_raises(ServerError) { client_behind_proxy.locks.get(KEY) }
    assert_equal "HTTP 502 without an error message through the proxy #{address}", error.message
    @server.script << "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    assert_includes assert_raises(ServerError) { client_behind_proxy.locks.get(KEY) }.message, address
    2.times { @server.script << "" }
    assert_includes assert_raises(TransportError) { client_behind_proxy.locks.get(KEY) }.message, address
  end

  # case 56
  def test_a_plain_request_through_a_proxy_names_the_whole_url_and_the_credentials
    heads = []
    ENV["http_proxy"] = @server.url.sub("//", "//us%40er:pass@")
    @server.singleton_class.send(:define_method, :serve_one) do |connection|
      heads << connection.each_line(chomp: true).take_while { |line| line != "" }
      connection.write("HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n#{FREE}")
      false
    end
    refute_predicate client_behind_proxy.locks.get(KEY), :held?
  ensure
    assert_equal "GET http://locks.invalid:7420/base/locks/#{KEY} HTTP/1.1", heads.dig(0, 0)
    assert_includes heads[0], "Host: locks.invalid:7420"
    assert_includes heads[0], "Proxy-Authorization: Basic #{['us@er:pass'].pack('m0')}"
  end

  def test_a_refused_connection_names_host_port_and_what_to_check
    error = assert_raises(TransportError) { Client.new(api_url: dead_url, service_key: "sk-x").locks.get(KEY) }
    assert_match(/cannot connect to 127.0.0.1 port #{URI(dead_url).port}: Errno::ECONNREFUSED: .*the server is running/,
                 error.message)
    assert_includes error.message, "api_url (VOLCANO_API_URL)"
  end

  # case 56: also through the tunnel of a proxy
  def test_tls_with_a_known_authority_works_and_with_an_unknown_one_is_an_unsent_request
    tls = TlsServer.new(@server.url)
    client = Client.new(api_url: tls.url, service_key: "sk-x", timeout: 5)
    error = assert_raises(TransportError) { client.locks.get(KEY) }
    refute_predicate error, :request_sent?
    assert_match(/certificate verify failed/, error.message)
    Dir.mktmpdir do |folder|
      authority = File.join(folder, "ca.pem")
      File.write(authority, tls.certificate.to_pem)
      { tls.url => {}, "https://locks.invalid" => { "https_proxy" => tls.tunnel_url } }.each do |url, proxy|
        program = <<~RUBY
          locks = VolcanoLocks::Client.new(api_url: "#{url}", service_key: "sk-x").locks
          10.times { locks.release("k", locks.acquire("k", ttl: 30)) }
        RUBY
        environment = { "RUBYOPT" => nil, "RUBYLIB" => nil, "SSL_CERT_FILE" => authority, **proxy }
        assert system(environment, RbConfig.ruby, "-I", LIBRARY, "-r", "volcano_locks", "-e", program), url
      end
    end
    assert_equal ["CONNECT locks.invalid:443 HTTP/1.1"], tls.tunnels
    assert_equal 2, @server.connections
  ensure
    client&.close
    tls&.close
  end

  # A TLS front of a plain server, and a proxy that makes tunnels to it.
  class TlsServer
    attr_reader :certificate, :url, :tunnel_url, :tunnels

    def initialize(target)
      key = OpenSSL::PKey::EC.generate("prime256v1")
      @certificate = self_signed(key)
      context = OpenSSL::SSL::SSLContext.new
      context.add_certificate(@certificate, key)
      listener = TCPServer.new("127.0.0.1", 0)
      @url = "https://127.0.0.1:#{listener.addr[1]}"
      @server = OpenSSL::SSL::SSLServer.new(listener, context)
      @proxy = TCPServer.new("127.0.0.1", 0)
      @tunnel_url = "http://127.0.0.1:#{@proxy.addr[1]}"
      @tunnels = []
      @threads = [thread { loop { accept(URI(target)) } }, thread { loop { tunnel(@proxy.accept) } }]
    end

    def close
      @threads.each(&:kill)
      [@server, @proxy].each(&:close)
    end

    private

    def self_signed(key)
      certificate = OpenSSL::X509::Certificate.new
      certificate.version = 2
      certificate.serial = 1
      certificate.subject = certificate.issuer = OpenSSL::X509::Name.parse("/CN=127.0.0.1")
      certificate.public_key = key
      certificate.not_before = Time.now - 3600
      certificate.not_after = Time.now + 3600
      extensions = OpenSSL::X509::ExtensionFactory.new(certificate, certificate)
      certificate.add_extension(extensions.create_extension("basicConstraints", "CA:TRUE", true))
      certificate.add_extension(extensions.create_extension("subjectAltName", "IP:127.0.0.1,DNS:locks.invalid"))
      certificate.sign(key, OpenSSL::Digest.new("SHA256"))
    end

    def accept(target)
      connection = @server.accept
      pipe(connection, TCPSocket.new(target.host, target.port))
    rescue OpenSSL::SSL::SSLError
      nil
    end

    def tunnel(connection)
      @tunnels << connection.gets.chomp
      nil until connection.gets.chomp.empty?
      connection.write("HTTP/1.1 200 Connection established\r\n\r\n")
      pipe(connection, TCPSocket.new("127.0.0.1", URI(@url).port))
    end

    def pipe(one, other)
      @threads << thread { IO.copy_stream(one, other) } << thread { IO.copy_stream(other, one) }
    end

    def thread(&work)
      Thread.new(&work)
    end
  end

  private

  # A proc that writes the text in small pieces, then closes the connection if the text is in an array.
  def answer(raw, step:)
    text = Array(raw).join
    lambda do |connection|
      text.bytes.each_slice((text.bytesize / step) + 1) do |bytes|
        connection.write(bytes.pack("C*"))
        sleep 0.001
      end
      connection.close if raw.is_a?(Array)
      !raw.is_a?(Array)
    end
  end

  def client_behind_proxy
    Client.new(api_url: "http://locks.invalid:7420/base", service_key: "sk-x", timeout: 5)
  end

  # A URL at which nothing listens.
  def dead_url
    @dead_url ||= TCPServer.open("127.0.0.1", 0) { |one| "http://127.0.0.1:#{one.addr[1]}" }
  end
end
