//! The contents of messages: random bytes, text in several scripts, and text that compresses like
//! that of real messages.

use crate::protocol::{Content, Script};
use crate::random::Random;

/// Returns a payload of exactly this many bytes. Text is valid UTF-8.
pub(crate) fn content(content: Content, bytes: usize) -> Vec<u8> {
    let seed = if content == Content::Binary { bytes as u64 } else { 3 };
    variant(content, bytes, seed)
}

/// Returns the payload of this content for a seed.
pub fn variant(content: Content, bytes: usize, seed: u64) -> Vec<u8> {
    match content {
        Content::Binary => {
            let mut payload = vec![0; bytes];
            Random::new(seed).fill(&mut payload);
            payload
        }
        Content::Ascii => drawn(Script::Ascii, bytes, seed),
        Content::TwoByte => drawn(Script::Cyrillic, bytes, seed),
        Content::Json => json(seed, bytes),
    }
}

/// Returns the characters of a script.
fn alphabet(script: Script) -> &'static [&'static str] {
    match script {
        Script::Ascii => {
            &["the ", "quick ", "brown ", "fox ", "jumps, ", "over 13 ", "lazy ", "dogs. "]
        }
        Script::Latin => {
            &["déjà ", "vu, ", "naïve ", "façade ", "über ", "Straße ", "año ", "smörgås "]
        }
        Script::Cyrillic => &["я", "б", "ж", "щ", "ю", "э", "й", "λ", "ω", "π"],
        Script::Cjk => &["你", "好", "世", "界", "語", "の", "か", "한"],
        Script::Emoji => &["😀", "🚀", "🎉", "🦀", "🌍"],
        Script::Mixed => &["log: ", "é", "я", "語", "🦀", "id=7 ", "ß", "한", "🎉", "; "],
    }
}

/// Returns text of exactly this many bytes. Full stops fill the rest if the next character is too
/// long.
pub(crate) fn text(script: Script, bytes: usize) -> Vec<u8> {
    drawn(script, bytes, 3)
}

fn drawn(script: Script, bytes: usize, seed: u64) -> Vec<u8> {
    let alphabet = alphabet(script);
    let mut random = Random::new(seed);
    let mut text = Vec::with_capacity(bytes);
    while text.len() < bytes {
        let piece = alphabet[random.below(alphabet.len())].as_bytes();
        if text.len() + piece.len() <= bytes {
            text.extend_from_slice(piece);
        } else {
            text.resize(bytes, b'.');
        }
    }
    text
}

/// Returns the positions that cut `bytes` bytes into `pieces`. They are odd, so that they also cut
/// characters.
pub(crate) fn cuts(bytes: usize, pieces: usize) -> Vec<usize> {
    (1..pieces).map(|piece| (bytes * piece / pieces) | 1).filter(|&cut| cut < bytes).collect()
}

/// Returns the pieces between the cuts.
pub(crate) fn pieces<'a>(bytes: &'a [u8], cuts: &'a [usize]) -> impl Iterator<Item = &'a [u8]> {
    let starts = std::iter::once(0).chain(cuts.iter().copied());
    let ends = cuts.iter().copied().chain(std::iter::once(bytes.len()));
    starts.zip(ends).map(|(start, end)| &bytes[start..end])
}

/// Returns text like the messages of services: records with the same keys and changing values.
pub(crate) fn json(seed: u64, bytes: usize) -> Vec<u8> {
    const KINDS: [&str; 4] = ["created", "moved", "closed", "commented"];
    const NAMES: [&str; 6] = ["Ada", "Grace", "Edsger", "Barbara", "Ken", "Margaret"];
    let mut random = Random::new(seed);
    let mut text = String::from("[");
    while text.len() < bytes {
        let record = format!(
            "{{\"id\":{},\"kind\":\"{}\",\"user\":{{\"name\":\"{}\",\"score\":{}}},\
             \"at\":\"2026-11-{:02}T{:02}:{:02}:00Z\",\"tags\":[\"t{}\",\"t{}\"]}},",
            random.next() % 1_000_000,
            KINDS[random.below(KINDS.len())],
            NAMES[random.below(NAMES.len())],
            random.below(1_000),
            random.below(30) + 1,
            random.below(24),
            random.below(60),
            random.below(40),
            random.below(40),
        );
        text.push_str(&record);
    }
    text.truncate(bytes.saturating_sub(1));
    text.push(']');
    text.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_valid_and_as_long_as_asked_for() {
        for script in Script::ALL {
            for bytes in [0, 1, 20, 1024, 16_384] {
                let text = text(script, bytes);
                assert_eq!(text.len(), bytes);
                assert!(std::str::from_utf8(&text).is_ok());
            }
        }
    }

    #[test]
    fn pieces_are_the_whole_again_and_some_cut_a_character() {
        let text = text(Script::Cyrillic, 1024);
        let cuts = cuts(text.len(), 4);
        let all: Vec<&[u8]> = pieces(&text, &cuts).collect();
        assert_eq!(all.len(), 4);
        assert_eq!(all.concat(), text);
        assert!(all.iter().any(|piece| std::str::from_utf8(piece).is_err()));
    }

    #[test]
    fn messages_differ_by_seed_and_have_their_length() {
        assert_eq!(json(1, 1024).len(), 1024);
        assert_ne!(json(1, 1024), json(2, 1024));
    }
}
