//! Sources and devices as subscribers of a reactor, with a driver and without.

use windlass::{Group, Interest, Key, Reactor, interest};
use windlass_bench_driver::Error;
use windlass_bench_driver::protocol::Trigger;
use windlass_bench_driver::source::{Device, Handler, Source};

fn watched(trigger: Trigger) -> Interest {
    match trigger {
        Trigger::Level => interest().read(),
        Trigger::Edge => interest().read().edge_triggered(),
    }
}

pub(crate) fn add<H: Handler>(
    reactor: &mut Reactor,
    source: Source,
    trigger: Trigger,
    mut handler: H,
) -> Result<Key, Error> {
    let key = watched(trigger)
        .with_fd(source)
        .with_handler(move |source: &mut Source| handler.handle(*source))
        .register_into(reactor);
    key.map_err(|refused| std::io::Error::from(refused).into())
}

/// A group: one state for four descriptors.
pub(crate) fn add_device(
    reactor: &mut Reactor,
    sources: [Source; 4],
    trigger: Trigger,
    device: Device,
) -> Result<(), Error> {
    let mut group = Group::new(device);
    for (queue, source) in sources.into_iter().enumerate() {
        group =
            group.fd(watched(trigger), source, move |device: &mut Device, source: &mut Source| {
                device.handle(queue, *source)
            });
    }
    let registered = group.register_into(reactor);
    registered.map(drop).map_err(|refused| std::io::Error::from(refused).into())
}
