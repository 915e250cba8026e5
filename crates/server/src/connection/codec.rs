//! The codec budget from the side of one connection. The rules are in
//! `shared/codec_budget.rs`.

use std::rc::Rc;

use windlass::stream::{Input, Stream};
use windlass_ws::Scratch;

use super::open::{FirstCallback, Open, PassInput, after_output};
use crate::{
    handler::Handler,
    service::ServiceInner,
    shared::{HEAVY_BYTES, HEAVY_TICKS, LIGHT_LEN},
    state::ServiceState,
    table::{HALT_QUEUED, HALTS, HAS_DEFLATE},
};

impl<D: 'static> Open<D> {
    /// Handles received bytes of a connection with compression or a rate of messages, or of one in
    /// an unusual state.
    #[inline(never)]
    pub(crate) fn on_data_checked<H: Handler<Data = D>>(
        &mut self,
        service: &ServiceInner<H>,
        stream: &mut Stream<'_>,
        input: Input<'_>,
    ) {
        let state = &service.state;
        let may_inflate = self.conn.halt & (HALTS | HAS_DEFLATE) == HAS_DEFLATE;
        if may_inflate && !state.shared.codec.is_available(&stream.turn()) {
            if !self.is_light(state, input.len()) || state.shared.codec.is_light_spent() {
                self.wait_for_codec(state, stream, &input);
                return after_output(state, stream);
            }
            state.shared.codec.set_light(true);
        }
        self.run_passes(service, stream, PassInput::Input(input), FirstCallback::Nothing);
        state.shared.codec.set_light(false);
    }

    /// Returns whether these bytes need not wait for the compression work of others (rule 6).
    fn is_light(&self, state: &ServiceState, len: usize) -> bool {
        let since = self.conn.since_heavy(state.shared.tick());
        len <= LIGHT_LEN && since >= HEAVY_TICKS && self.engine.buffered() == 0
    }

    /// Counts the codec work of a pass of a connection with compression; `before` is the count at
    /// its beginning.
    pub(crate) fn note_codec(&mut self, state: &ServiceState, scratch: &Scratch, before: u64) {
        let stats = &state.shared.stats;
        state.shared.codec.note_scratch(scratch.codec_bytes(), stats);
        if stats.codec_bytes().saturating_sub(before) > HEAVY_BYTES {
            self.conn.note_heavy(state.shared.tick());
        }
    }

    /// Holds received bytes until this connection may use the codecs.
    pub(crate) fn wait_for_codec(
        &mut self,
        state: &Rc<ServiceState>,
        stream: &mut Stream<'_>,
        rest: &[u8],
    ) {
        self.hold(state, stream, rest);
        self.conn.halt |= HALT_QUEUED;
        let (index, stats) = (self.conn.index, &state.shared.stats);
        state.shared.codec.push(&mut state.tables.borrow_mut().conns, index, stats);
        state.notify_queue_later(&mut stream.turn());
    }

    /// Leaves the codec queue, because the connection cannot continue for another reason, or ends.
    pub(crate) fn leave_codec_queue(&mut self, state: &Rc<ServiceState>, stream: &mut Stream<'_>) {
        if self.conn.halt & HALT_QUEUED != 0 {
            self.conn.halt &= !HALT_QUEUED;
            let (index, tick) = (self.conn.index, state.shared.tick());
            state.shared.codec.remove(&mut state.tables.borrow_mut().conns, index, tick);
            state.notify_queue_later(&mut stream.turn());
        }
    }

    /// Returns whether the codec budget allows this connection to process its held input. If not,
    /// the connection waits for the codecs.
    pub(crate) fn may_use_codec(
        &mut self,
        state: &Rc<ServiceState>,
        stream: &mut Stream<'_>,
    ) -> bool {
        if self.conn.halt & HALT_QUEUED != 0 {
            let (index, tick) = (self.conn.index, state.shared.tick());
            let may = state.shared.codec.try_resume(
                &mut state.tables.borrow_mut().conns,
                &stream.turn(),
                index,
                tick,
            );
            // The others, or this one again.
            state.notify_queue_later(&mut stream.turn());
            if may {
                self.conn.halt &= !HALT_QUEUED;
            }
            return may;
        }
        let may =
            self.conn.halt & HAS_DEFLATE == 0 || state.shared.codec.is_available(&stream.turn());
        if !may {
            self.wait_for_codec(state, stream, &[]);
        }
        may
    }
}
