# A client and a server with the library Mojolicious.
#
# usage: perl echo.pl alone URL | perl echo.pl serve plain | perl echo.pl serve CERTIFICATE KEY
#
# The client prints `test NAME ... ok` or `test NAME ... FAILED: why` for each test.
# ../python/server.py describes the paths of the server.
use Mojo::Base -strict, -signatures;

use Mojo::IOLoop;
use Mojo::Promise;
use Mojo::Server::Daemon;
use Mojo::UserAgent;
use Mojo::Util qw(encode);
use Mojolicious;

use constant {MESSAGE_MAX => 4 << 20, PATIENCE_S => 60};

my @SIZES = (0, 1, 125, 126, 65_535, 65_536, 1 << 20);
my ($OP_CONTINUATION, $OP_TEXT, $OP_BINARY, $OP_PING, $OP_PONG) = (0, 1, 2, 9, 10);
my $agent = Mojo::UserAgent->new(max_redirects => 0, inactivity_timeout => PATIENCE_S);

sub bytes_of ($size) { join '', map { chr((131 * $_ + 7 * ($_ >> 8) + $size) & 255) } 0 .. $size - 1 }
# An empty message twice in succession is not compressed as RFC 7692 section 7.2.3.6 says.
sub text_of ($size) {
  return 'x' x $size if $size < 9;
  return substr encode('UTF-8', "\x{fc}\x{20ac}\x{1f600}") x ($size / 9 + 1), 0, $size - $size % 9;
}

# Opens a connection, and resolves to it.
sub open_to ($url, $deflate = 0) {
  my $promise = Mojo::Promise->new;
  my $tx = $agent->build_websocket_tx("$url/echo");
  $tx->req->headers->sec_websocket_extensions('permessage-deflate') if $deflate;
  $agent->start($tx => sub ($agent, $tx) {
    return $promise->reject('the handshake failed') unless $tx->is_websocket;
    return $promise->reject('no compression') if $deflate && !$tx->compressed;
    $tx->max_websocket_size(MESSAGE_MAX);
    $promise->resolve($tx);
  });
  return $promise;
}

# Sends each [kind, payload] when the one before has come back, and closes.
sub echoes ($tx, @messages) {
  my $promise = Mojo::Promise->new;
  my $next = sub { @messages ? $tx->send({@{$messages[0]}}) : $tx->finish(1000) };
  for my $kind (qw(text binary)) {
    $tx->on($kind => sub ($tx, $payload) {
      my ($expected, $sent) = @{shift @messages};
      return $promise->reject("other content than the $expected of @{[length $sent]} bytes")
        unless $kind eq $expected && $payload eq $sent;
      $next->();
    });
  }
  $tx->on(finish => sub ($tx, $code, $reason = undef) {
    return $promise->reject("closed with $code") if @messages || $code != 1000;
    $promise->resolve;
  });
  $next->();
  return $promise;
}

sub echo_of_sizes ($url, $kind, $make, $deflate) {
  return open_to($url, $deflate)->then(sub ($tx) { echoes($tx, map { [$kind => $make->($_)] } @SIZES) });
}

sub pings ($url) {
  return open_to($url)->then(sub ($tx) {
    my @payloads = ('', 'x', bytes_of(125));
    my $promise = Mojo::Promise->new;
    $tx->on(frame => sub ($tx, $frame) {
      return unless $frame->[4] == $OP_PONG;
      return $promise->reject('another payload') unless $frame->[5] eq shift @payloads;
      @payloads ? $tx->send([1, 0, 0, 0, $OP_PING, $payloads[0]]) : $promise->resolve($tx);
    });
    $tx->send([1, 0, 0, 0, $OP_PING, $payloads[0]]);
    return $promise;
  })->then(sub ($tx) { echoes($tx, [text => 'after']) });
}

sub closing_codes ($url) {
  my $promise = Mojo::Promise->resolve;
  for ([1000, ''], [1001, 'bye'], [3000, 'own'], [4999, "\x{fc}" x 61]) {
    my ($code, $reason) = @$_;
    $promise = $promise->then(sub { open_to($url) })->then(sub ($tx) {
      my $ended = Mojo::Promise->new;
      # The server's Close frame: the event `finish` has the client's own code.
      $tx->on(frame => sub ($tx, $frame) {
        return unless $frame->[4] == 8;
        my $answer = unpack 'n', $frame->[5];
        $answer == $code ? $ended->resolve : $ended->reject("$code is answered by $answer");
      });
      $tx->on(finish => sub { $ended->reject("no answer to $code") });
      $tx->finish($code, $reason);
      return $ended;
    });
  }
  return $promise;
}

sub run ($name, $test) {
  my $failure;
  my $limit = Mojo::Promise->timeout(PATIENCE_S, 'it takes too long');
  Mojo::Promise->race($test->(), $limit)->catch(sub ($error) { $failure = $error })->wait;
  say "test $name ... ", defined $failure ? 'FAILED: ' . $failure =~ s/\s+/ /gr : 'ok';
}

sub alone ($url) {
  run(text_comes_back => sub { echo_of_sizes($url, text => \&text_of, 0) });
  run(binary_comes_back => sub { echo_of_sizes($url, binary => \&bytes_of, 0) });
  run(compressed_text_comes_back => sub { echo_of_sizes($url, text => \&text_of, 1) });
  run(compressed_binary_comes_back => sub { echo_of_sizes($url, binary => \&bytes_of, 1) });
  run(pings_are_answered => sub { pings($url) });
  run(closing_codes_come_back => sub { closing_codes($url) });
}

# Sends a message in three frames.
sub send_fragments ($tx, $op, $payload) {
  my $message = $tx->build_message({$op == $OP_TEXT ? 'text' : 'binary', $payload});
  my ($compressed, $content) = @$message[1, 5];
  my $size = int(length($content) / 3) + 1;
  for (my $at = 0; $at < length $content; $at += $size) {
    my $is_last = $at + $size >= length $content ? 1 : 0;
    my @head = $at ? ($is_last, 0, 0, 0, $OP_CONTINUATION) : ($is_last, $compressed, 0, 0, $op);
    $tx->send([@head, substr $content, $at, $size]);
  }
}

sub serve ($certificate, $key = undef) {
  my $app = Mojolicious->new;
  $app->log->level('fatal');
  $app->routes->websocket('/*way' => {way => ''} => sub ($c) {
    my ($tx, $path) = ($c->tx, $c->stash('way'));
    $tx->with_compression;
    $tx->max_websocket_size(MESSAGE_MAX);
    return $c->on(message => sub { }) && $tx->finish(4001, 'by the server') if $path eq 'close';
    for ([text => $OP_TEXT], [binary => $OP_BINARY]) {
      my ($kind, $op) = @$_;
      $c->on($kind => sub ($c, $payload) {
        return $tx->send([1, 0, 0, 0, $op, '']) if $payload eq '';    # See text_of.
        $path eq 'fragments' ? send_fragments($tx, $op, $payload) : $tx->send({$kind => $payload});
      });
    }
    if ($path eq 'ping') {
      $c->on(frame => sub ($c, $frame) {
        $tx->send('ponged') if $frame->[4] == $OP_PONG && $frame->[5] eq 'from the server';
      });
      $tx->send([1, 0, 0, 0, $OP_PING, 'from the server']);
    }
  });
  my $listen = $key ? "https://127.0.0.1:0?cert=$certificate&key=$key" : 'http://127.0.0.1:0';
  my $daemon = Mojo::Server::Daemon->new(app => $app, listen => [$listen], silent => 1);
  $daemon->start;
  say 'listening on ', $daemon->ports->[0];
  Mojo::IOLoop->start;
}

$| = 1;
my ($what, @arguments) = @ARGV;
my %modes = (alone => \&alone, serve => \&serve);
($modes{$what} // die "there is no $what\n")->(@arguments);
