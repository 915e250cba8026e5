//! The codec budget from the side of one connection. The rules are in
//! `state/codec_budget.rs`.

use std::rc::Rc;

use windlass::stream::{Input, Stream};
use windlass_ws::Scratch;

use super::open::{FirstCallback, Open, PassInput, after_output};
use crate::{
    handler::Handler,
    service::ServiceInner,
    state::{HEAVY_BYTES, HEAVY_TICKS, LIGHT_LEN, ServiceState},
    table::{HALT_QUEUED, HALTS, HAS_DEFLATE},
};

impl<D: 'static> Open<D> {
    /// Handles received bytes of a connection with compression, or of one in an unusual state.
    #[inline(never)]
    pub(crate) fn on_data_checked<H: Handler<Data = D>>(
        &mut self,
        service: &ServiceInner<H>,
        stream: &mut Stream<'_>,
        input: Input<'_>,
    ) {
        let state = &service.state;
        if self.conn.halt & HALTS == 0 && !state.codec_is_available(&stream.turn()) {
            if !self.is_light(state, input.len()) || state.codec.is_light_spent() {
                self.wait_for_codec(state, stream, &input);
                return after_output(state, stream);
            }
            state.codec.is_light.set(true);
        }
        self.run_passes(service, stream, PassInput::Input(input), FirstCallback::Nothing);
        state.codec.is_light.set(false);
    }

    /// Returns whether these bytes need not wait for the compression work of others (rule 6).
    fn is_light(&self, state: &ServiceState, len: usize) -> bool {
        let since = self.conn.since_heavy(state.tick.get());
        len <= LIGHT_LEN && since >= HEAVY_TICKS && self.engine.buffered() == 0
    }

    /// Counts the codec work of a pass of a connection with compression; `before` is the count at
    /// its beginning.
    pub(crate) fn note_codec(&mut self, state: &ServiceState, scratch: &Scratch, before: u64) {
        state.note_codec(scratch.codec_bytes());
        if state.codec_total().saturating_sub(before) > HEAVY_BYTES {
            self.conn.note_heavy(state.tick.get());
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
        state.wait_for_codec(&mut stream.turn(), self.conn.index);
    }

    /// Leaves the codec queue, because the connection cannot continue for another reason, or ends.
    pub(crate) fn leave_codec_queue(&mut self, state: &Rc<ServiceState>, stream: &mut Stream<'_>) {
        if self.conn.halt & HALT_QUEUED != 0 {
            self.conn.halt &= !HALT_QUEUED;
            state.leave_codec_queue(&mut stream.turn(), self.conn.index);
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
            let may = state.resume_codec(&mut stream.turn(), self.conn.index);
            if may {
                self.conn.halt &= !HALT_QUEUED;
            }
            return may;
        }
        let may = self.conn.halt & HAS_DEFLATE == 0 || state.codec_is_available(&stream.turn());
        if !may {
            self.wait_for_codec(state, stream, &[]);
        }
        may
    }
}
