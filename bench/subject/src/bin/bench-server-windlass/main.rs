//! The servers of windlass for the suites that measure servers, written as its users would write
//! them.

#![deny(unsafe_code)]

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use windlass::{Backend, Reactor};
use windlass_bench_driver::protocol::ServerInfo;
use windlass_bench_driver::server::{
    self, ANY_PORT, MESSAGE_MAX, Mode, PUBLISHER, Settings, TOPIC, announce, announce_as,
};
use windlass_bench_driver::tls::{CERTIFICATE, PRIVATE_KEY};
use windlass_bench_driver::{Error, work};
use windlass_server::http::{Accept, Reject, UpgradeRequest};
use windlass_server::{Connection, Handler, Message, Options, Server, Service};
use windlass_tls::TlsAcceptor;
use windlass_ws::deflate::DeflateConfig;

/// The ping interval of uWebSockets. During a measurement no client is silent for so long.
const PING_INTERVAL: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    server::run(|settings| match settings.mode {
        Mode::Echo if settings.workers.is_some() => serve_on_workers(&settings),
        Mode::Echo if settings.work.is_zero() => serve(Echo, settings),
        Mode::Echo => serve(WorkingEcho(settings.work), settings),
        Mode::Broadcast => serve(Broadcast, settings),
    })
}

fn serve(handler: impl Handler, settings: Settings) -> Result<(), Error> {
    let mut options = Options::new();
    options.limits.frame_max = MESSAGE_MAX;
    options.limits.message_max = MESSAGE_MAX;
    options.receiver_buffer_max = 2 * MESSAGE_MAX;
    options.deflate = settings.deflate.then_some(DeflateConfig::DEFAULT);
    options.ping_interval = Some(PING_INTERVAL);
    options.idle_timeout = Some(2 * PING_INTERVAL);
    let backend = settings.backend_or(Backend::Auto)?;
    let mut reactor = Reactor::builder()
        .backend(backend)
        .subscribers_max(20_000)
        .build()
        .map_err(io::Error::from)?;
    let listener = options.listener().tcp(ANY_PORT)?;
    let address = listener.local_addr()?.socket_addr().ok_or("an address without a port")?;
    let listener = match settings.tls {
        true => listener.with_tls(Arc::new(
            TlsAcceptor::builder().certificate(CERTIFICATE, PRIVATE_KEY).build()?,
        )),
        false => listener,
    };
    let service = Service::new(handler, &options, &mut reactor)?;
    service.listen(listener, &mut reactor)?;
    announce(address, env!("CARGO_PKG_VERSION"));
    reactor.run()?;
    Ok(())
}

/// Serves with several threads, each with a listener of its own on the same port.
fn serve_on_workers(settings: &Settings) -> Result<(), Error> {
    let mut options = Options::new();
    options.ping_interval = Some(PING_INTERVAL);
    options.idle_timeout = Some(2 * PING_INTERVAL);
    let running = Server::new(options, |_| Echo)
        .workers(settings.workers.unwrap_or(1))
        .backend(settings.backend_or(Backend::Auto)?)
        .listen(ANY_PORT)
        .start()?;
    let address = running.addresses()[0].socket_addr().ok_or("an address without a port")?;
    // Allocations of several threads are not counted.
    announce_as(&ServerInfo::new(address, env!("CARGO_PKG_VERSION")));
    Ok(running.join()?)
}

/// Sends every message back.
struct Echo;

impl Handler for Echo {
    type Data = ();

    fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
        Ok(Accept::new(()))
    }

    fn on_message(&self, connection: &mut Connection<'_>, (): &mut (), message: Message<'_>) {
        // This fails if the connection is closing, and then no client waits for the answer.
        let _ = connection.reply_in_place(message);
    }
}

/// Works on every message before it sends it back.
struct WorkingEcho(Duration);

impl Handler for WorkingEcho {
    type Data = ();

    fn on_upgrade(&self, request: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
        Echo.on_upgrade(request)
    }

    fn on_message(&self, connection: &mut Connection<'_>, (): &mut (), message: Message<'_>) {
        work(self.0);
        Echo.on_message(connection, &mut (), message);
    }
}

/// Sends the messages of publishers to all receivers.
struct Broadcast;

impl Handler for Broadcast {
    /// True if the connection publishes.
    type Data = bool;

    fn on_upgrade(&self, request: &UpgradeRequest<'_>) -> Result<Accept<bool>, Reject> {
        Ok(Accept::new(request.path() == PUBLISHER))
    }

    fn on_open(&self, connection: &mut Connection<'_>, is_publisher: &mut bool) {
        if !*is_publisher {
            connection.subscribe(TOPIC).expect("the name is short");
        }
    }

    fn on_message(
        &self,
        connection: &mut Connection<'_>,
        is_publisher: &mut bool,
        message: Message<'_>,
    ) {
        if *is_publisher {
            connection.publish_to_others(TOPIC, message.to_out());
        }
    }
}
