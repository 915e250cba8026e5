//! The topics that a node is subscribed to on the bus, and the numbers that arrived for them.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    sequence::{Arrival, Arrivals, PublisherId},
    subject::{SubjectMap, TOPIC_BYTES_MAX},
};

/// How long a subscription is kept after the last receiver has left.
pub(super) const GRACE: Duration = Duration::from_secs(1);

/// A topic with a subscription.
struct Entry {
    subject: Arc<str>,
    /// The workers that have receivers.
    workers: Vec<u16>,
    /// When the last worker has left, if there is none.
    left_at: Option<Instant>,
    arrivals: Arrivals,
}

/// The subscriptions of a node.
pub(super) struct Interest {
    subjects: SubjectMap,
    topics: HashMap<Arc<str>, Entry>,
    /// The topics without workers, by the time when the last one has left.
    left: BTreeSet<(Instant, Arc<str>)>,
    /// Number of topics of each subject with a hash. Two topics may have one hash.
    hashed: HashMap<Arc<str>, usize>,
    /// Number of publishers that the topics follow.
    publishers: usize,
}

impl Interest {
    /// Memory of a topic in bytes, besides its name and its subject: its entry in a map with as
    /// much spare room again, the counters of the subject, a list of workers.
    pub(super) const OVERHEAD: usize = 2 * size_of::<(Arc<str>, Entry)>() + 32;

    pub(super) fn new(subjects: SubjectMap) -> Self {
        Self {
            subjects,
            topics: HashMap::new(),
            left: BTreeSet::new(),
            hashed: HashMap::new(),
            publishers: 0,
        }
    }

    /// Number of topics with a subscription.
    pub(super) fn len(&self) -> usize {
        self.topics.len()
    }

    /// Number of publishers that are followed, in all topics.
    pub(super) fn publishers(&self) -> usize {
        self.publishers
    }

    /// Returns whether some topic has no worker.
    pub(super) fn has_left(&self) -> bool {
        !self.left.is_empty()
    }

    /// A worker has got the first receiver of a topic. Returns the subject to subscribe to.
    pub(super) fn join(&mut self, topic: &Arc<str>, worker: u16) -> Option<Arc<str>> {
        if let Some(entry) = self.topics.get_mut(topic) {
            if let Some(left_at) = entry.left_at.take() {
                self.left.remove(&(left_at, Arc::clone(topic)));
            }
            if !entry.workers.contains(&worker) {
                entry.workers.push(worker);
            }
            return None;
        }
        let subject: Arc<str> = self.subjects.subject(topic).into();
        let entry = Entry {
            subject: Arc::clone(&subject),
            workers: vec![worker],
            left_at: None,
            arrivals: Arrivals::default(),
        };
        self.topics.insert(Arc::clone(topic), entry);
        let is_first = topic.len() <= TOPIC_BYTES_MAX || {
            let topics = self.hashed.entry(Arc::clone(&subject)).or_default();
            *topics += 1;
            *topics == 1
        };
        is_first.then_some(subject)
    }

    /// A worker has lost the last receiver of a topic.
    pub(super) fn leave(&mut self, topic: &str, worker: u16, now: Instant) {
        let Some((name, _)) = self.topics.get_key_value(topic) else { return };
        let name = Arc::clone(name);
        let Some(entry) = self.topics.get_mut(topic) else { return };
        entry.workers.retain(|other| *other != worker);
        if entry.workers.is_empty() && entry.left_at.is_none() {
            entry.left_at = Some(now);
            self.left.insert((now, name));
        }
    }

    /// Returns a subject whose subscription is to be given up, if there is one.
    pub(super) fn expire(&mut self, now: Instant) -> Option<Arc<str>> {
        while let Some((left_at, _)) = self.left.first() {
            if now.saturating_duration_since(*left_at) < GRACE {
                return None;
            }
            let (_, topic) = self.left.pop_first()?;
            let Some(Entry { subject, arrivals, .. }) = self.topics.remove(&topic) else {
                continue;
            };
            self.publishers -= arrivals.publishers();
            if topic.len() <= TOPIC_BYTES_MAX {
                return Some(subject);
            }
            let topics = self.hashed.get_mut(&subject)?;
            *topics -= 1;
            if *topics == 0 {
                self.hashed.remove(&subject);
                return Some(subject);
            }
        }
        None
    }

    /// Notes the epoch and the number of a publication that has arrived. Returns the workers with
    /// receivers of its topic. `None` without a subscription to it.
    pub(super) fn note(
        &mut self,
        topic: &str,
        publisher: PublisherId,
        (epoch, sequence): (u64, u64),
    ) -> Option<(&[u16], Arrival)> {
        let Entry { workers, arrivals, .. } = self.topics.get_mut(topic)?;
        let before = arrivals.publishers();
        let arrival = arrivals.note(publisher, epoch, sequence);
        self.publishers += arrivals.publishers() - before;
        Some((workers, arrival))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn interest() -> (Interest, SubjectMap) {
        let subjects = SubjectMap::new("p").unwrap();
        (Interest::new(subjects.clone()), subjects)
    }

    #[test]
    fn a_topic_has_one_subscription_until_a_second_after_the_last_worker() {
        let (mut interest, subjects) = interest();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let subject: Arc<str> = subjects.subject("t").into();
        assert_eq!(interest.join(&"t".into(), 0), Some(Arc::clone(&subject)));
        assert_eq!((interest.join(&"t".into(), 1), interest.join(&"t".into(), 1)), (None, None));
        interest.leave("t", 0, at(0));
        assert!(!interest.has_left() && interest.expire(at(5000)).is_none(), "one is left");
        interest.leave("t", 1, at(5000));
        interest.leave("t", 1, at(5500));
        assert!(interest.has_left());
        assert_eq!(interest.expire(at(5999)), None);
        assert_eq!(interest.join(&"t".into(), 1), None, "still subscribed");
        assert_eq!((interest.expire(at(9000)), interest.has_left()), (None, false));
        interest.leave("t", 1, at(9000));
        assert_eq!(interest.expire(at(10_000)), Some(Arc::clone(&subject)));
        assert_eq!((interest.expire(at(10_000)), interest.len()), (None, 0));
        assert_eq!(interest.join(&"t".into(), 1), Some(subject), "subscribed again");
    }

    #[test]
    fn who_is_not_there_does_not_leave() {
        let (mut interest, _) = interest();
        interest.leave("t", 0, Instant::now());
        assert!(!interest.has_left());
        interest.join(&"t".into(), 0);
        interest.leave("t", 1, Instant::now());
        assert!(!interest.has_left());
    }

    #[test]
    fn a_subject_of_several_topics_is_kept_until_the_last_one() {
        let (mut interest, _) = interest();
        let (one, other) = ("x".repeat(300), "y".repeat(300));
        let subject = interest.join(&one.as_str().into(), 0).unwrap();
        // As if their hashes were equal.
        interest.join(&other.as_str().into(), 0).unwrap();
        let now = Instant::now();
        interest.topics.get_mut(&*other).unwrap().subject = Arc::clone(&subject);
        interest.hashed.insert(Arc::clone(&subject), 2);
        interest.leave(&one, 0, now);
        assert_eq!(interest.expire(now + GRACE), None);
        interest.leave(&other, 0, now);
        assert_eq!(interest.expire(now + GRACE), Some(subject));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Join(u8, u16),
        Leave(u8, u16),
        Wait(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..4_u8, 0..3_u16).prop_map(|(topic, worker)| Step::Join(topic, worker)),
            (0..4_u8, 0..3_u16).prop_map(|(topic, worker)| Step::Leave(topic, worker)),
            (0..1500_u64).prop_map(Step::Wait),
        ]
    }

    proptest! {
        /// A naive model: the workers of each topic, and when the last one left.
        #[test]
        fn subscriptions_are_those_of_a_naive_model(
            steps in proptest::collection::vec(step(), 0..100),
        ) {
            check(&steps);
        }
    }

    fn check(steps: &[Step]) {
        let (mut interest, subjects) = interest();
        let (start, mut now_ms) = (Instant::now(), 0);
        let mut model: BTreeMap<u8, (Vec<u16>, u64)> = BTreeMap::new();
        for step in steps {
            match *step {
                Step::Join(topic, worker) => {
                    let name = topic.to_string();
                    let is_new = !model.contains_key(&topic);
                    let expected = is_new.then(|| subjects.subject(&name));
                    assert_eq!(
                        interest.join(&name.as_str().into(), worker).as_deref(),
                        expected.as_deref()
                    );
                    let workers = &mut model.entry(topic).or_default().0;
                    workers.retain(|other| *other != worker);
                    workers.push(worker);
                }
                Step::Leave(topic, worker) => {
                    let now = start + Duration::from_millis(now_ms);
                    interest.leave(&topic.to_string(), worker, now);
                    if let Some((workers, left_ms)) = model.get_mut(&topic) {
                        let before = workers.len();
                        workers.retain(|other| *other != worker);
                        if before > 0 && workers.is_empty() {
                            *left_ms = now_ms;
                        }
                    }
                }
                Step::Wait(ms) => {
                    now_ms += ms;
                    let now = start + Duration::from_millis(now_ms);
                    let mut gone = Vec::new();
                    while let Some(subject) = interest.expire(now) {
                        gone.push(subject.to_string());
                    }
                    let stays = |(workers, left_ms): &(Vec<u16>, u64)| {
                        !workers.is_empty() || now_ms - left_ms < 1000
                    };
                    let expected = model.iter().filter(|(_, entry)| !stays(entry));
                    let mut expected: Vec<_> =
                        expected.map(|(topic, _)| subjects.subject(&topic.to_string())).collect();
                    model.retain(|_, entry| stays(entry));
                    gone.sort();
                    expected.sort();
                    assert_eq!(gone, expected);
                }
            }
            assert_eq!(interest.len(), model.len());
            let has_left = model.values().any(|(workers, _)| workers.is_empty());
            assert_eq!(interest.has_left(), has_left);
        }
    }
}
