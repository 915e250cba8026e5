//! The slow path, frame by frame. It passes complete messages on in place, and assembles those in
//! pieces.

use super::{
    Assembly, CLIENT, CLOSE_SENT, DEFLATE, Engine, PIECES,
    assembly::{HEAD_ROOM, PartialFrame},
    control::ControlFrame,
    event::{EventContent, Piece, TextBytes},
    fragments::Joined,
    pass::{BINARY, PassInput, TEXT, fail},
    scratch::{Output, ReplyLocation},
};
use crate::protocol::{
    frame::{FirstByte, FrameHeader, HEADER_LEN_MAX, Opcode, parse_with, plain_len, write_plain},
    mask,
    violation::Violation,
};

/// The source of the next event.
pub(super) enum EventSource {
    /// A message in one frame that lies whole in the input.
    Input { text: bool, src: usize, len: usize, key: Option<[u8; 4]> },
    /// A message whose fragments were joined in the input.
    Joined(Joined),
    /// An assembled or decompressed message. `checked` means that its text has been validated as
    /// UTF-8.
    Assembled { text: bool, checked: bool },
    /// A piece of a message, in the input.
    Piece { text: bool, src: usize, len: usize, last: bool },
    /// A piece of a message, which was assembled before pieces were asked for, or decompressed.
    AssembledPiece { text: bool, last: bool },
    /// A control frame.
    Control(ControlFrame),
}

/// Finds any event by the slow path.
#[inline(never)]
pub(super) fn next_any<'l>(
    input: &'l mut PassInput<'_>,
    engine: &mut Engine,
    out: &mut Output,
) -> Option<EventContent<'l>> {
    let next = if let Some(next) = input.medium_frame(engine) {
        Ok(Some(next))
    } else if let Some(joined) = input.join_fragments(engine, out) {
        Ok(Some(EventSource::Joined(joined)))
    } else {
        out.store_message(input.buffers);
        FrameReader { input, engine, out }.next_source()
    };
    match next {
        Ok(None) => None,
        Ok(Some(EventSource::Input { text, src, len, key })) => {
            let (bytes, location) = input.unmask(out, text, src, len, key);
            out.reply_location = location;
            let reply_end = engine.reply_end(location);
            Some(
                message(bytes, text, false, reply_end).unwrap_or_else(|violation| {
                    EventContent::Violation(fail(engine, out, violation))
                }),
            )
        }
        Ok(Some(EventSource::Joined(Joined { text, payload }))) => {
            out.reply_location = ReplyLocation::Input { end: payload.end };
            let reply_end = engine.reply_end(out.reply_location);
            Some(
                message(&mut input.bytes[payload], text, false, reply_end).unwrap_or_else(
                    |violation| EventContent::Violation(fail(engine, out, violation)),
                ),
            )
        }
        Ok(Some(EventSource::Assembled { text, checked })) => {
            let (head, bytes) = input.buffers.message.as_mut()?.bytes.split_at_mut(HEAD_ROOM);
            let start = HEAD_ROOM - plain_len(bytes.len() as u64);
            write_plain(&mut head[start..], opcode(text), bytes.len());
            out.reply_location = if engine.is_client() {
                ReplyLocation::Copied
            } else {
                ReplyLocation::Assembled { start }
            };
            let found = message(bytes, text, checked, None);
            Some(
                found.unwrap_or_else(|violation| {
                    EventContent::Violation(fail(engine, out, violation))
                }),
            )
        }
        Ok(Some(EventSource::Piece { text, src, len, last })) => Some(EventContent::Piece(Piece {
            bytes: &mut input.bytes[src..src + len],
            is_text: text,
            is_last: last,
        })),
        Ok(Some(EventSource::AssembledPiece { text, last })) => Some(EventContent::Piece(Piece {
            bytes: &mut input.buffers.message.as_mut()?.bytes[HEAD_ROOM..],
            is_text: text,
            is_last: last,
        })),
        Ok(Some(EventSource::Control(control))) => Some(control.answer(input, engine, out)),
        Err(violation) => Some(EventContent::Violation(fail(engine, out, violation))),
    }
}

const fn opcode(text: bool) -> Opcode {
    if text { Opcode::Text } else { Opcode::Binary }
}

#[inline]
fn message(
    bytes: &mut [u8],
    text: bool,
    checked: bool,
    reply_end: Option<usize>,
) -> Result<EventContent<'_>, Violation> {
    if !text {
        return Ok(EventContent::Binary(bytes, reply_end));
    }
    if !checked && simdutf8::basic::from_utf8(bytes).is_err() {
        return Err(Violation::InvalidUtf8);
    }
    Ok(EventContent::Text(TextBytes::validated(bytes), reply_end))
}

impl PassInput<'_> {
    /// A shortcut for the most common result of the steps: a complete message of 126 to 65 535
    /// bytes from a client, with the engine in its usual state.
    #[inline(always)]
    fn medium_frame(&mut self, engine: &Engine) -> Option<EventSource> {
        let rest = self.bytes.get(self.at..)?;
        let (first, len, key, payload) = engine.medium(rest)?;
        if len > payload.len() {
            return None;
        }
        let src = self.at + 8;
        self.at = src + len;
        Some(EventSource::Input { text: first == TEXT, src, len, key: Some(key) })
    }

    /// The payload of such a message, if it is binary and its reply needs no compression, and the
    /// end of that reply.
    #[inline(always)]
    pub(super) fn medium_binary(
        &mut self,
        engine: &Engine,
        out: &mut Output,
    ) -> Option<(&mut [u8], usize)> {
        if self.bytes.get(self.at) != Some(&BINARY) || engine.flags & DEFLATE != 0 {
            return None;
        }
        let EventSource::Input { text: false, src, len, key } = self.medium_frame(engine)? else {
            return None;
        };
        match self.unmask(out, false, src, len, key) {
            (bytes, ReplyLocation::Input { end }) => Some((bytes, end)),
            _ => None,
        }
    }

    /// The unmasked payload from `src` of the input, and the place where a reply can be built. The
    /// reply's header is already in place.
    #[inline(always)]
    fn unmask(
        &mut self,
        out: &mut Output,
        text: bool,
        src: usize,
        len: usize,
        key: Option<[u8; 4]>,
    ) -> (&mut [u8], ReplyLocation) {
        let Some(key) = key else {
            return (&mut self.bytes[src..src + len], ReplyLocation::Copied);
        };
        let head_len = plain_len(len as u64);
        let start = out.make_room(src, head_len);
        let (head, bytes) =
            mask::unmask_down(self.bytes, start, head_len, src - head_len, head_len, len, key);
        write_plain(head, opcode(text), len);
        (bytes, ReplyLocation::Input { end: start + head_len + len })
    }
}

/// The loop from frame to frame.
pub(super) struct FrameReader<'s, 'p> {
    pub(super) input: &'s mut PassInput<'p>,
    pub(super) engine: &'s mut Engine,
    pub(super) out: &'s mut Output,
}

impl FrameReader<'_, '_> {
    /// Finds the next complete message or control frame.
    fn next_source(&mut self) -> Result<Option<EventSource>, Violation> {
        let found = self.read_frames();
        if self.engine.fast_len_end == 0 {
            self.engine.update_fast_path();
        }
        found
    }

    fn read_frames(&mut self) -> Result<Option<EventSource>, Violation> {
        loop {
            if self.engine.end().is_some() {
                self.input.at = self.input.bytes.len();
                return Ok(None);
            }
            if let Some(found) = self.assembled_piece() {
                return Ok(Some(found));
            }
            if self.engine.has_frame() {
                let found = self.append_payload()?;
                if found.is_some() || self.engine.has_frame() {
                    return Ok(found);
                }
            }
            if self.input.at == self.input.bytes.len() {
                return Ok(None);
            }
            let Some(header) = self.header()? else { return Ok(None) };
            let found = if header.opcode.is_control() {
                self.begin_control(header)?
            } else {
                self.begin_data(header)?
            };
            if found.is_some() {
                return Ok(found);
            }
        }
    }

    /// Parses the header of the next frame. An incomplete header is kept for the next pass.
    fn header(&mut self) -> Result<Option<FrameHeader>, Violation> {
        let engine = &mut *self.engine;
        let masked = match engine.is_client() {
            true => Some(false),
            false if engine.config.accept_unmasked => None,
            false => Some(true),
        };
        let rest = &self.input.bytes[self.input.at..];
        let kept = usize::from(engine.head_len);
        if kept == 0 {
            let parsed = parse_with(rest, masked, |first| engine.check_allowed(first));
            if let Some((header, len)) = noted(engine, rest, parsed)? {
                self.input.at += len;
                return Ok(Some(header));
            }
        }
        let taken = rest.len().min(HEADER_LEN_MAX - kept);
        let mut head = [0; HEADER_LEN_MAX];
        head[..kept].copy_from_slice(&engine.head[..kept]);
        head[kept..kept + taken].copy_from_slice(&rest[..taken]);
        let parsed = parse_with(&head[..kept + taken], masked, |first| engine.check_allowed(first));
        match noted(engine, &head, parsed)? {
            Some((header, len)) => {
                self.input.at += len - kept;
                engine.head_len = 0;
                Ok(Some(header))
            }
            None => {
                self.input.at += taken;
                // An incomplete header always fits into `head`.
                engine.head[kept..kept + taken].copy_from_slice(&rest[..taken]);
                engine.head_len = (kept + taken) as u8;
                engine.fast_len_end = 0;
                Ok(None)
            }
        }
    }

    fn begin_control(&mut self, header: FrameHeader) -> Result<Option<EventSource>, Violation> {
        let len = self.engine.check_frame_len(&header)?;
        // Close frames are not limited. There is only one, and a peer is expected to send it.
        if header.opcode != Opcode::Close {
            self.engine.count_control(self.input.buffers.second)?;
        }
        if self.input.bytes.len() - self.input.at >= len {
            let src = self.input.at;
            self.input.at += len;
            return Ok(Some(EventSource::Control(ControlFrame::Input {
                opcode: header.opcode,
                src,
                len,
                key: header.key,
            })));
        }
        let assembly = self.engine.assembly(self.out);
        assembly.control_len = 0;
        assembly.frame =
            Some(PartialFrame { opcode: header.opcode, fin: true, key: header.key, left: len });
        Ok(None)
    }

    fn begin_data(&mut self, header: FrameHeader) -> Result<Option<EventSource>, Violation> {
        let len = self.engine.check_frame_len(&header)?;
        let limits = &self.engine.config.limits;
        let (so_far, fragments) = match &self.engine.partial {
            Some(partial) => {
                (partial.payload_len(), partial.message.map_or(0, |message| message.fragments))
            }
            None => (0, 0),
        };
        if len > limits.message_max.saturating_sub(so_far) {
            let size = so_far as u64 + len as u64;
            self.engine.note_failed_header(header.first_byte(), size);
            return Err(Violation::MessageTooBig);
        }
        if fragments >= limits.fragments_max {
            return Err(Violation::TooManyFragments);
        }
        let text = header.opcode == Opcode::Text;
        if header.opcode != Opcode::Continuation
            && header.fin
            && self.input.bytes.len() - self.input.at >= len
        {
            if let Some(found) = self.complete_data_frame(&header, text, len)? {
                return Ok(Some(found));
            }
        }
        let assembly = self.engine.assembly(self.out);
        let begins = header.opcode != Opcode::Continuation;
        if begins {
            assembly.open(text, header.compressed);
        }
        if let Some(message) = &mut assembly.message {
            message.fragments += 1;
        }
        assembly.frame = Some(PartialFrame {
            opcode: header.opcode,
            fin: header.fin,
            key: header.key,
            left: len,
        });
        if begins && header.compressed && self.engine.flags & PIECES != 0 {
            self.open_stream()?;
        }
        // Even if no payload has arrived: the frame may be empty.
        self.append_payload()
    }

    /// A message in one frame that lies whole in the input. `None` if its header came in an earlier
    /// pass and there is no room for the header of a reply.
    fn complete_data_frame(
        &mut self,
        header: &FrameHeader,
        text: bool,
        len: usize,
    ) -> Result<Option<EventSource>, Violation> {
        let src = self.input.at;
        if header.compressed {
            if self.engine.flags & PIECES != 0 {
                // It may become long.
                return Ok(None);
            }
            self.input.at += len;
            if let Some(key) = header.key {
                mask::mask(&mut self.input.bytes[src..src + len], key);
            }
            self.inflate_input(src, len)?;
            return Ok(Some(EventSource::Assembled { text, checked: false }));
        }
        if header.key.is_some() && !self.out.has_room(src, plain_len(len as u64)) {
            return Ok(None);
        }
        self.input.at += len;
        Ok(Some(EventSource::Input { text, src, len, key: header.key }))
    }

    /// Appends the available payload of the incomplete frame.
    fn append_payload(&mut self) -> Result<Option<EventSource>, Violation> {
        let Some(assembly) = &mut self.engine.partial else { return Ok(None) };
        let is_stream = assembly.is_stream();
        let Some(frame) = &mut assembly.frame else { return Ok(None) };
        if is_stream && !frame.opcode.is_control() {
            return self.append_compressed();
        }
        let rest = &self.input.bytes[self.input.at..];
        let piece = &rest[..rest.len().min(frame.left)];
        self.input.at += piece.len();
        frame.left -= piece.len();
        let (frame_done, key) = (frame.left == 0, frame.key);
        if let Some(key) = &mut frame.key {
            *key = mask::rotate(*key, piece.len());
        }
        let PartialFrame { opcode, fin, .. } = *frame;
        if frame_done {
            assembly.frame = None;
        }
        if opcode.is_control() {
            assembly.add_control(piece, key);
            return Ok(if frame_done { Some(self.assembled_control(opcode)) } else { None });
        }
        let gives_pieces = assembly.message.is_some_and(|message| !message.compressed);
        if gives_pieces && self.engine.flags & PIECES != 0 {
            let len = piece.len();
            return self.piece(self.input.at - len, len, key, frame_done && fin);
        }
        let checked = assembly.add_data(piece, key, frame_done && fin)?;
        if !frame_done || !fin {
            return Ok(None);
        }
        let message = assembly.message.take();
        self.input.buffers.message = self.engine.partial.take();
        let Some(message) = message else { return Ok(None) };
        if message.passed_on > 0 {
            // The rest of a message whose pieces are not asked for any more.
            self.out.store_message(self.input.buffers);
            return Ok(None);
        }
        if message.compressed {
            self.inflate_assembled()?;
        }
        Ok(Some(EventSource::Assembled { text: message.text, checked }))
    }

    /// What is held of a message, uncompressed, if pieces are asked for now.
    fn assembled_piece(&mut self) -> Option<EventSource> {
        if self.engine.flags & PIECES == 0 {
            return None;
        }
        let assembly = self.engine.partial.as_mut()?;
        let len = assembly.assembled_len();
        if len == 0 || assembly.holds_compressed() {
            return None;
        }
        let message = assembly.message.as_mut()?;
        message.passed_on += len;
        let text = message.text;
        let mut piece = self.out.take_spare();
        core::mem::swap(&mut piece.bytes, &mut assembly.bytes);
        assembly.bytes.clear();
        assembly.bytes.resize(HEAD_ROOM, 0);
        self.input.buffers.message = Some(piece);
        Some(EventSource::AssembledPiece { text, last: false })
    }

    /// Passes a part of an uncompressed message on, which lies in the input.
    fn piece(
        &mut self,
        src: usize,
        len: usize,
        key: Option<[u8; 4]>,
        last: bool,
    ) -> Result<Option<EventSource>, Violation> {
        let bytes = &mut self.input.bytes[src..src + len];
        if let Some(key) = key {
            mask::mask(bytes, key);
        }
        let message = self.engine.partial.as_mut().and_then(|partial| partial.message.as_mut());
        let Some(message) = message else { return Ok(None) };
        if message.text {
            message.utf8.push(bytes)?;
            if last {
                message.utf8.finish()?;
            }
        }
        message.passed_on += len;
        let text = message.text;
        if last {
            self.engine.discard_partial(self.out);
        }
        Ok((len > 0 || last).then_some(EventSource::Piece { text, src, len, last }))
    }

    /// Moves a complete control frame to where it can be read, while its assembly continues to
    /// serve the surrounding message.
    fn assembled_control(&mut self, opcode: Opcode) -> EventSource {
        let mut len = 0;
        if let Some(assembly) = &self.engine.partial {
            len = usize::from(assembly.control_len);
            self.input.buffers.control[..len].copy_from_slice(&assembly.control[..len]);
            if assembly.message.is_none() {
                self.engine.discard_partial(self.out);
            }
        }
        EventSource::Control(ControlFrame::Assembled { opcode, len })
    }
}

/// Keeps what a header that begins with `bytes` says about its violation.
fn noted<T>(
    engine: &mut Engine,
    bytes: &[u8],
    parsed: Result<T, Violation>,
) -> Result<T, Violation> {
    if let (Err(_), Some(first)) = (&parsed, bytes.first()) {
        engine.note_failed_header(*first, 0);
    }
    parsed
}

impl Engine {
    /// The end of a reply at this location, if such a reply needs nothing more.
    fn reply_end(&self, location: ReplyLocation) -> Option<usize> {
        match location {
            ReplyLocation::Input { end } if self.flags & (CLOSE_SENT | CLIENT | DEFLATE) == 0 => {
                Some(end)
            }
            _ => None,
        }
    }

    /// Whether a frame is incomplete.
    fn has_frame(&self) -> bool {
        self.partial.as_ref().is_some_and(|partial| partial.frame.is_some())
    }

    /// Whether a message is incomplete.
    fn has_message(&self) -> bool {
        self.partial.as_ref().is_some_and(|partial| partial.message.is_some())
    }

    /// Checks whether such a frame is allowed now.
    fn check_allowed(&self, first: FirstByte) -> Result<(), Violation> {
        if first.compressed && !self.may_be_compressed() {
            return Err(Violation::ReservedBits);
        }
        match first.opcode {
            Opcode::Continuation if !self.has_message() => Err(Violation::UnexpectedContinuation),
            Opcode::Text | Opcode::Binary if self.has_message() => {
                Err(Violation::ExpectedContinuation)
            }
            _ => Ok(()),
        }
    }

    fn check_frame_len(&mut self, header: &FrameHeader) -> Result<usize, Violation> {
        match usize::try_from(header.len) {
            Ok(len) if len <= self.config.limits.frame_max => Ok(len),
            _ => {
                self.note_failed_header(header.first_byte(), header.len);
                Err(Violation::FrameTooBig)
            }
        }
    }

    fn count_control(&mut self, second: Option<u32>) -> Result<(), Violation> {
        let Some(second) = second else { return Ok(()) };
        if self.second != second {
            (self.second, self.controls) = (second, 0);
        }
        if self.controls >= self.config.limits.controls_per_second_max {
            return Err(Violation::TooManyControls);
        }
        self.controls += 1;
        Ok(())
    }

    /// The buffer for the message or frame in pieces. Takes a spare one if there is none.
    fn assembly(&mut self, out: &mut Output) -> &mut Assembly {
        self.fast_len_end = 0;
        self.partial.get_or_insert_with(|| out.take_spare())
    }

    /// Discards an incomplete message or frame.
    pub(super) fn discard_partial(&mut self, out: &mut Output) {
        self.fast_len_end = 0;
        if let Some(assembly) = self.partial.take() {
            out.recycle(assembly);
        }
    }
}

impl Output {
    /// Whether a reply's header fits before the payload at `src`.
    pub(super) fn has_room(&self, src: usize, head: usize) -> bool {
        src >= self.end + head
    }

    /// The start of the next reply, built around the payload at `src` with a header of `head`
    /// bytes. If no reply was built since the last other output, the payload stays where it is.
    #[inline]
    pub(super) fn make_room(&mut self, src: usize, head: usize) -> usize {
        if self.start == self.end {
            (self.start, self.end) = (src - head, src - head);
        }
        self.end
    }
}
