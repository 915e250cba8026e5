//! mio with a table of handlers.

use std::cell::RefCell;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use windlass_bench_driver::dispatch::Subject;
use windlass_bench_driver::poll0::PollSubject;
use windlass_bench_driver::protocol::Trigger;
use windlass_bench_driver::source::{Device, Handler, Source};
use windlass_bench_driver::{EVENTS_PER_TURN, Error};

/// The value that users of mio keep per token.
pub(crate) type Callback = Box<dyn FnMut()>;

/// The table from token to handler, which mio leaves to its user.
pub(crate) trait Table: Default + 'static {
    fn insert(&mut self, handler: Callback) -> Token;
    fn get(&mut self, token: Token) -> Option<&mut Callback>;
    fn remove(&mut self, token: Token) -> Option<Callback>;
}

pub(crate) struct MioWith<T> {
    poll: Poll,
    events: Events,
    handlers: T,
}

impl<T: Table> MioWith<T> {
    fn watch(&mut self, source: Source, handler: Callback) -> Result<(Token, Source), Error> {
        let token = self.handlers.insert(handler);
        let fd = source.as_raw_fd();
        self.poll.registry().register(&mut SourceFd(&fd), token, Interest::READABLE)?;
        Ok((token, source))
    }
}

/// mio is always edge-triggered. With [`Trigger::Level`] only the handler differs, because it
/// reads.
impl<T: Table> Subject for MioWith<T> {
    type Key = (Token, Source);

    const IS_LEVEL_TRIGGERED: bool = false;

    fn new(_backend: &str) -> Result<Self, Error> {
        Ok(Self {
            poll: Poll::new()?,
            events: Events::with_capacity(EVENTS_PER_TURN),
            handlers: T::default(),
        })
    }

    fn add<H: Handler>(
        &mut self,
        source: Source,
        _trigger: Trigger,
        mut handler: H,
    ) -> Result<Self::Key, Error> {
        self.watch(source, Box::new(move || handler.handle(source)))
    }

    fn add_device(
        &mut self,
        sources: [Source; 4],
        _trigger: Trigger,
        device: Device,
    ) -> Result<(), Error> {
        let device = Rc::new(RefCell::new(device));
        for (queue, source) in sources.into_iter().enumerate() {
            let device = Rc::clone(&device);
            self.watch(source, Box::new(move || device.borrow_mut().handle(queue, source)))?;
        }
        Ok(())
    }

    fn delete(&mut self, (token, source): Self::Key) -> Result<(), Error> {
        self.poll.registry().deregister(&mut SourceFd(&source.as_raw_fd()))?;
        drop(self.handlers.remove(token).ok_or("no such token")?);
        Ok(())
    }

    #[inline(always)]
    fn turn(&mut self) -> std::io::Result<()> {
        self.turn_within(None)
    }
}

impl<T: Table> PollSubject for MioWith<T> {
    #[inline(always)]
    fn turn_at_once(&mut self) -> std::io::Result<()> {
        self.turn_within(Some(Duration::ZERO))
    }
}

impl<T: Table> MioWith<T> {
    #[inline(always)]
    fn turn_within(&mut self, limit: Option<Duration>) -> std::io::Result<()> {
        self.poll.poll(&mut self.events, limit)?;
        for event in &self.events {
            if let Some(handler) = self.handlers.get(event.token()) {
                handler();
            }
        }
        Ok(())
    }
}
