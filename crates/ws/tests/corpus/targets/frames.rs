//! Headers, masks and UTF-8, each compared with a simple implementation.

use windlass_ws::{FrameHeader, HEADER_LEN_MAX, Utf8Validator, mask};

use super::input::{Cuts, Input};

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let kind = input.byte();
    match kind % 3 {
        0 => header(input.rest()),
        1 => masking(&mut input),
        _ => utf8(&mut input),
    }
}

/// A parsed header encodes to the same bytes, and every shorter length needs more bytes. An error
/// stays an error when more bytes follow.
fn header(bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(HEADER_LEN_MAX)];
    match FrameHeader::parse(bytes) {
        Ok(None) => assert!(bytes.len() < HEADER_LEN_MAX, "no header is longer: {bytes:x?}"),
        Ok(Some((header, len))) => {
            let mut written = [0; HEADER_LEN_MAX];
            assert_eq!(header.encode(&mut written), len, "{header:?}");
            assert_eq!(header.encoded_len(), len, "{header:?}");
            assert_eq!(written[..len], bytes[..len], "{header:?}");
            for short in 0..len {
                assert_eq!(
                    FrameHeader::parse(&bytes[..short]),
                    Ok(None),
                    "{bytes:x?} cut at {short}"
                );
            }
        }
        Err(violation) => {
            let at = (0..=bytes.len()).find(|at| FrameHeader::parse(&bytes[..*at]).is_err());
            for more in at.expect("the whole is rejected")..=bytes.len() {
                assert_eq!(
                    FrameHeader::parse(&bytes[..more]),
                    Err(violation),
                    "{bytes:x?} cut at {more}"
                );
            }
        }
    }
}

/// The result is the same as byte by byte, at every alignment.
fn masking(input: &mut Input<'_>) {
    let offset = usize::from(input.byte() % 64);
    let key = [input.byte(), input.byte(), input.byte(), input.byte()];
    let original = [vec![0; offset], input.payload()].concat();
    let mut masked = original.clone();
    mask(&mut masked[offset..], key);
    for (index, (now, before)) in masked[offset..].iter().zip(&original[offset..]).enumerate() {
        assert_eq!(*now, before ^ key[index % 4], "byte {index} of {}", original.len() - offset);
    }
    mask(&mut masked[offset..], key);
    assert_eq!(masked, original);
}

/// The verdict on pieces is that of the standard library. It comes no later than with the first
/// piece after which no further bytes can make the text valid.
fn utf8(input: &mut Input<'_>) {
    let mut cuts = Cuts::new(input);
    let text = if input.byte() % 2 == 0 { input.rest().to_vec() } else { input.payload() };
    let mut validator = Utf8Validator::new();
    let mut end = 0;
    while end < text.len() {
        let start = end;
        end += cuts.next(text.len() - start);
        // For invalid text, the library reports whether further bytes could make it valid.
        let is_hopeless =
            std::str::from_utf8(&text[..end]).is_err_and(|error| error.error_len().is_some());
        let pushed = validator.push(&text[start..end]);
        assert_eq!(pushed.is_err(), is_hopeless, "after {end} bytes of {text:x?}");
        if is_hopeless {
            return;
        }
    }
    assert_eq!(validator.finish().is_ok(), std::str::from_utf8(&text).is_ok(), "{text:x?}");
}
