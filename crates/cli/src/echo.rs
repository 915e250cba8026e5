//! One connection: what comes is sent back.
//!
//! A connection waits either to read or to write, never for both. What the client does not take at once is kept, and until it is
//! sent nothing more is read: so at most one read's worth is kept, and TCP makes the client's own writes wait.

use std::{
    io::{self, ErrorKind, Read, Write},
    rc::Rc,
};

use windlass::{Event, Interest, ReactorOps, Turn, interest};

use crate::server::Server;

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The client had said all, and everything was sent back.
    Finished,
    /// The client was gone before that.
    Failed,
}

/// What a connection waits for next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Read,
    Write,
    Close(End),
}

/// The state of one connection.
pub(crate) struct Echo {
    server: Rc<Server>,
    pending: Pending,
}

impl Echo {
    pub(crate) const fn new(server: Rc<Server>) -> Self {
        Self { server, pending: Pending { bytes: Vec::new(), sent: 0 } }
    }

    /// The connection's handler: level-triggered, so what one call leaves is reported again and neighbours get their turn.
    pub(crate) fn on_ready<R: ReactorOps>(
        &mut self,
        stream: &mut (impl Read + Write),
        event: Event,
        mut turn: Turn<'_, R>,
    ) {
        let next = self.advance(stream);
        let wanted = match next {
            Next::Read => interest().read(),
            Next::Write => interest().write(),
            Next::Close(end) => return self.close(event, end, turn),
        };
        if self.change(event, wanted, &mut turn).is_err() {
            self.close(event, End::Failed, turn);
        }
    }

    fn change<R: ReactorOps>(
        &self,
        event: Event,
        wanted: Interest,
        turn: &mut Turn<'_, R>,
    ) -> Result<(), windlass::ModifyError> {
        if wanted == event.interest() {
            return Ok(());
        }
        if wanted.has_write() {
            self.server.count(|counts| counts.reading_paused += 1);
        }
        turn.modify(event.key(), wanted)
    }

    fn close<R: ReactorOps>(&self, event: Event, end: End, mut turn: Turn<'_, R>) {
        // The stream is closed when this handler has returned.
        turn.delete(event.key()).expect("a running handler is registered, and deletes itself once");
        self.server.connection_closed(end, &mut turn);
    }

    /// Sends what is pending, then reads once and sends that.
    fn advance(&mut self, stream: &mut (impl Read + Write)) -> Next {
        let scratch = &mut *self.server.scratch.borrow_mut();
        let mut sent = 0;
        let next = step(&mut self.pending, stream, scratch, &mut sent);
        self.server.count(|counts| counts.bytes += sent);
        next.unwrap_or(Next::Close(End::Failed))
    }
}

/// Bytes that the client has not taken yet.
struct Pending {
    bytes: Vec<u8>,
    sent: usize,
}

impl Pending {
    /// Sends as much as goes; true when nothing is left. Then the memory is given back, too.
    fn flush(&mut self, stream: &mut impl Write, sent: &mut u64) -> io::Result<bool> {
        let count = write_some(stream, &self.bytes[self.sent..])?;
        *sent += count as u64;
        self.sent += count;
        let is_done = self.sent == self.bytes.len();
        if is_done {
            *self = Self { bytes: Vec::new(), sent: 0 };
        }
        Ok(is_done)
    }
}

fn step(
    pending: &mut Pending,
    stream: &mut (impl Read + Write),
    scratch: &mut [u8],
    sent: &mut u64,
) -> io::Result<Next> {
    if !pending.flush(stream, sent)? {
        return Ok(Next::Write);
    }
    let count = match stream.read(scratch) {
        // Half closed: all that came before has been sent.
        Ok(0) => return Ok(Next::Close(End::Finished)),
        Ok(count) => count,
        Err(error) if is_momentary(&error) => return Ok(Next::Read),
        Err(error) => return Err(error),
    };
    let taken = write_some(stream, &scratch[..count])?;
    *sent += taken as u64;
    if taken == count {
        return Ok(Next::Read);
    }
    pending.bytes = scratch[taken..count].to_vec();
    Ok(Next::Write)
}

/// Writes once; nothing if the client takes nothing now.
fn write_some(stream: &mut impl Write, bytes: &[u8]) -> io::Result<usize> {
    if bytes.is_empty() {
        return Ok(0);
    }
    match stream.write(bytes) {
        Err(error) if is_momentary(&error) => Ok(0),
        outcome => outcome,
    }
}

/// Whether trying again at the next event is the answer.
fn is_momentary(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use windlass::{Key, MockReactor, Ready, turn};

    /// A client that sends these pieces (an empty one ends its half), and takes this many bytes with each write.
    #[derive(Default)]
    struct Client {
        sends: VecDeque<io::Result<Vec<u8>>>,
        takes: VecDeque<io::Result<usize>>,
        got: Vec<u8>,
    }

    impl Read for Client {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let piece = self.sends.pop_front().unwrap_or(Err(ErrorKind::WouldBlock.into()))?;
            buffer[..piece.len()].copy_from_slice(&piece);
            Ok(piece.len())
        }
    }

    impl Write for Client {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = self.takes.pop_front().unwrap_or(Err(ErrorKind::WouldBlock.into()))?.min(bytes.len());
            self.got.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    const KEY: u64 = 3;

    fn event(interest: Interest) -> Event {
        Event::new(Key::from_bits(KEY), interest, Ready::empty().read().write())
    }

    fn connection() -> Echo {
        let server = Rc::new(Server::new(10, 16));
        server.connection_opened();
        Echo::new(server)
    }

    fn expecting_modify(to: Interest) -> MockReactor {
        let mut mock = MockReactor::new();
        mock.expect_modify()
            .withf(move |key, interest| *key == Key::from_bits(KEY) && *interest == to)
            .times(1)
            .returning(|_, _| Ok(()));
        mock
    }

    fn expecting_delete() -> MockReactor {
        let mut mock = MockReactor::new();
        mock.expect_delete().withf(|key| *key == Key::from_bits(KEY)).times(1).returning(|_| Ok(()));
        mock
    }

    #[test]
    fn what_is_taken_at_once_changes_no_interest() {
        let mut echo = connection();
        let mut client = Client { sends: [Ok(b"hello".to_vec())].into(), takes: [Ok(99)].into(), ..Client::default() };
        echo.on_ready(&mut client, event(interest().read()), turn!(MockReactor::new()));
        assert_eq!(client.got, b"hello");
        assert_eq!(echo.server.counts().bytes, 5);
    }

    #[test]
    fn a_client_that_does_not_read_is_not_read_from() {
        let mut echo = connection();
        let mut client = Client {
            sends: [Ok(b"one".to_vec()), Ok(b"two".to_vec())].into(),
            takes: [Ok(1)].into(),
            ..Client::default()
        };
        echo.on_ready(&mut client, event(interest().read()), turn!(expecting_modify(interest().write())));
        assert_eq!(client.got, b"o");
        assert_eq!(echo.server.counts().reading_paused, 1);

        client.takes = [Ok(1)].into();
        echo.on_ready(&mut client, event(interest().write()), turn!(MockReactor::new()));
        assert_eq!((client.got.as_slice(), client.sends.len()), (&b"on"[..], 1));

        client.takes = [Ok(1), Ok(9)].into();
        echo.on_ready(&mut client, event(interest().write()), turn!(expecting_modify(interest().read())));
        assert_eq!(client.got, b"onetwo");
        assert_eq!(echo.pending.bytes.capacity(), 0, "an idle connection keeps no buffer");
    }

    #[test]
    fn the_end_of_the_input_closes_after_the_rest_was_sent() {
        let mut echo = connection();
        let mut client =
            Client { sends: [Ok(b"bye".to_vec()), Ok(vec![])].into(), takes: [Ok(2)].into(), ..Client::default() };
        echo.on_ready(&mut client, event(interest().read()), turn!(expecting_modify(interest().write())));
        client.takes = [Ok(9)].into();
        echo.on_ready(&mut client, event(interest().write()), turn!(expecting_delete()));
        assert_eq!(client.got, b"bye");
        assert_eq!(echo.server.counts().open, 0);
        assert_eq!(echo.server.counts().failed, 0);
    }

    #[test]
    fn a_reset_closes_whether_it_reads_or_writes() {
        for (sends, takes) in
            [(Err(ErrorKind::ConnectionReset.into()), Ok(9)), (Ok(b"x".to_vec()), Err(ErrorKind::BrokenPipe.into()))]
        {
            let mut echo = connection();
            let mut client = Client { sends: [sends].into(), takes: [takes].into(), ..Client::default() };
            echo.on_ready(&mut client, event(interest().read()), turn!(expecting_delete()));
            assert_eq!(echo.server.counts().failed, 1);
        }
    }

    #[test]
    fn an_interrupted_or_spurious_event_changes_nothing() {
        for kind in [ErrorKind::Interrupted, ErrorKind::WouldBlock] {
            let mut echo = connection();
            let mut client = Client { sends: [Err(kind.into())].into(), ..Client::default() };
            echo.on_ready(&mut client, event(interest().read()), turn!(MockReactor::new()));
            assert_eq!(echo.server.counts().open, 1);
        }
    }

    #[test]
    fn an_interest_that_cannot_be_changed_closes() {
        let mut mock = expecting_delete();
        mock.expect_modify().times(1).returning(|_, _| Err(windlass::ModifyError::NotFound));
        let mut client = Client { sends: [Ok(b"x".to_vec())].into(), ..Client::default() };
        connection().on_ready(&mut client, event(interest().read()), turn!(mock));
        assert!(client.got.is_empty());
    }
}
