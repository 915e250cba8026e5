# A client and a server with the library websocket-driver, which has no I/O of its own.
#
# usage: ruby echo.rb alone URL | ruby echo.rb serve plain | ruby echo.rb serve CERTIFICATE KEY
#
# The client prints `test NAME ... ok` or `test NAME ... FAILED: why` for each test.
# ../python/server.py describes the paths of the server.
require "openssl"
require "socket"
require "timeout"
require "uri"
require "websocket/driver"

PATIENCE_S = 60
SIZES = [0, 1, 125, 126, 65_535, 65_536, 1 << 20].freeze

# What the driver writes to.
Connection = Struct.new(:stream, :url) do
  def write(bytes)
    stream.write(bytes)
  end
end

# Feeds the driver until the stream ends or the block returns true.
def read_until(driver, stream)
  until yield
    driver.parse(stream.readpartial(65_536))
    stream.flush
  end
rescue EOFError
  raise "the connection has ended" unless yield
end

def bytes_of(size)
  Array.new(size) { |at| (131 * at + 7 * (at >> 8) + size) & 255 }.pack("C*")
end

def check(is_so, what)
  raise what unless is_so
end

# A client whose connection is open.
class Client
  def initialize(url)
    uri = URI(url)
    @stream = TCPSocket.new(uri.host, uri.port)
    @stream.setsockopt(Socket::IPPROTO_TCP, Socket::TCP_NODELAY, 1)
    if uri.scheme == "wss"
      context = OpenSSL::SSL::SSLContext.new
      # With the authorities of SSL_CERT_FILE.
      context.set_params(verify_mode: OpenSSL::SSL::VERIFY_PEER)
      @stream = OpenSSL::SSL::SSLSocket.new(@stream, context)
      @stream.hostname = uri.host
      @stream.sync_close = true
      @stream.connect
      @stream.post_connection_check(uri.host)
    end
    @driver = WebSocket::Driver.client(Connection.new(@stream, "#{url}/echo"))
    @messages = []
    @driver.on(:message) { |event| @messages << event.data }
    @driver.on(:close) { |event| @code = event.code }
    @driver.start
    read_until(@driver, @stream) { @driver.state == :open }
  end

  def echoes(message)
    message.is_a?(String) ? @driver.text(message) : @driver.binary(message)
    read_until(@driver, @stream) { !@messages.empty? }
    check(@messages.shift == message, "other content than the #{message.length} sent")
  end

  def ping(payload)
    is_answered = false
    @driver.ping(payload) { is_answered = true }
    read_until(@driver, @stream) { is_answered }
  end

  # Closes, and expects the same code from the server.
  def close(code, reason = "")
    @driver.close(reason, code)
    read_until(@driver, @stream) { @code }
    check(@code == code, "#{code} is answered by #{@code}")
    @stream.close
  end
end

def run(name)
  Timeout.timeout(PATIENCE_S) { yield }
  puts "test #{name} ... ok"
rescue StandardError => error
  puts "test #{name} ... FAILED: #{error.class}: #{error.message.tr("\n", " ")}"
end

def echo_of_sizes(url)
  client = Client.new(url)
  SIZES.each { |size| client.echoes(yield size) }
  client.close(1000)
end

def alone(url)
  run("text_comes_back") { echo_of_sizes(url) { |size| "ü€😀" * (size / 9) } }
  # Binary messages are arrays of numbers in this library.
  run("binary_comes_back") { echo_of_sizes(url) { |size| bytes_of(size).bytes } }
  run("pings_are_answered") do
    client = Client.new(url)
    # The library tells no pong without a payload.
    ["x", "y" * 125].each { |payload| client.ping(payload) }
    client.echoes("after")
    client.close(1000)
  end
  run("closing_codes_come_back") do
    [[1000, ""], [1001, "bye"], [3000, "own"], [4999, "ü" * 61]].each do |code, reason|
      Client.new(url).close(code, reason)
    end
  end
end

def handle(stream)
  driver = WebSocket::Driver.server(Connection.new(stream))
  is_closed = false
  driver.on(:connect) { driver.start }
  driver.on(:close) { is_closed = true }
  driver.on(:open) do
    case driver.env["PATH_INFO"]
    when "/close" then driver.close("by the server", 4001)
    when "/ping" then driver.ping("from the server") { driver.text("ponged") }
    end
  end
  driver.on(:message) do |event|
    event.data.is_a?(String) ? driver.text(event.data) : driver.binary(event.data)
  end
  read_until(driver, stream) { is_closed }
ensure
  stream.close
end

def serve(certificate, key = nil)
  listener = TCPServer.new("127.0.0.1", 0)
  puts "listening on #{listener.addr[1]}"
  if key
    context = OpenSSL::SSL::SSLContext.new
    chain = OpenSSL::X509::Certificate.load_file(certificate)
    context.add_certificate(chain[0], OpenSSL::PKey.read(File.read(key)), chain[1..])
    listener = OpenSSL::SSL::SSLServer.new(listener, context)
  end
  loop do
    Thread.new(listener.accept) { |stream| handle(stream) }
  end
end

$stdout.sync = true
case ARGV[0]
when "alone" then alone(ARGV[1])
when "serve" then serve(*ARGV[1..])
else abort "there is no #{ARGV[0]}"
end
