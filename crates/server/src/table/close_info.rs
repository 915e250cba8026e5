//! Reasons and codes of connections that are about to end.

use std::collections::BTreeMap;

use windlass_ws::CloseCode;

use crate::api::CloseReason;

/// Reasons why connections are about to end, by index of the connection.
///
/// The first noted reason is stored apart from the map. Most connections end one after the other,
/// in the turn in which the reason is noted. The map would allocate and free memory for each of
/// them.
#[derive(Debug, Default)]
pub(crate) struct CloseInfos {
    first: Option<(u32, CloseInfo)>,
    others: BTreeMap<u32, CloseInfo>,
}

impl CloseInfos {
    /// Notes a reason, unless one is already noted.
    pub(crate) fn note(&mut self, index: u32, reason: CloseReason) {
        match &self.first {
            Some((first, _)) if *first == index => {}
            None if self.others.is_empty() => self.first = Some((index, CloseInfo::new(reason))),
            _ => {
                self.others.entry(index).or_insert_with(|| CloseInfo::new(reason));
            }
        }
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut CloseInfo> {
        match &mut self.first {
            Some((first, close_info)) if *first == index => Some(close_info),
            _ => self.others.get_mut(&index),
        }
    }

    pub(crate) fn remove(&mut self, index: u32) -> Option<CloseInfo> {
        match self.first.take_if(|(first, _)| *first == index) {
            Some((_, close_info)) => Some(close_info),
            None if self.others.is_empty() => None,
            None => self.others.remove(&index),
        }
    }
}

/// Facts about a connection's end that are known before it ends.
#[derive(Debug)]
pub(crate) struct CloseInfo {
    pub(crate) reason: CloseReason,
    /// The code of the peer's Close frame.
    pub(crate) code: Option<CloseCode>,
    /// The code with which this side closed the connection.
    pub(crate) own_code: Option<CloseCode>,
    pub(crate) text: Box<str>,
}

impl CloseInfo {
    pub(crate) fn new(reason: CloseReason) -> Self {
        Self { reason, code: None, own_code: None, text: "".into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_wins() {
        let mut close_infos = CloseInfos::default();
        for index in [1, 2, 3] {
            close_infos.note(index, CloseReason::Lost);
            close_infos.note(index, CloseReason::Idle);
        }
        close_infos.get_mut(1).unwrap().text = "one".into();
        close_infos.get_mut(3).unwrap().text = "three".into();
        assert_eq!(close_infos.remove(1).map(|close_info| close_info.text), Some("one".into()));
        // Later entries stay where they are.
        close_infos.note(2, CloseReason::Evicted);
        close_infos.note(4, CloseReason::Evicted);
        let reasons: Vec<_> = (1..5)
            .map(|index| close_infos.remove(index).map(|close_info| close_info.reason))
            .collect();
        assert_eq!(
            reasons,
            [None, Some(CloseReason::Lost), Some(CloseReason::Lost), Some(CloseReason::Evicted)]
        );
        assert!((0..5).all(
            |index| close_infos.remove(index).is_none() && close_infos.get_mut(index).is_none()
        ));
    }
}
