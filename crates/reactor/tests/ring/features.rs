//! Rings that lack one feature after another, like those of older kernels.

use std::{rc::Rc, time::Duration};

use windlass::{BuildError, Reactor, RingError, RingFeature, RingFeatures, Turn, interest};

use crate::tools::{Log, NOW, builder, counter, fire, heard, noting, run_dry};

const EACH: [(&str, RingFeatures); 7] = [
    ("NO_SQARRAY", RingFeatures::NO_SQARRAY),
    ("DEFER_TASKRUN", RingFeatures::DEFER_TASKRUN),
    ("SINGLE_ISSUER", RingFeatures::SINGLE_ISSUER),
    ("TASKRUN_FLAG", RingFeatures::TASKRUN_FLAG),
    ("SUBMIT_ALL", RingFeatures::SUBMIT_ALL),
    ("the registered ring", RingFeatures::REGISTERED),
    ("SKIP_SUCCESS", RingFeatures::SKIP_SUCCESS),
];

/// Runs a reactor through its whole life. It uses every manner of interest, changes, deletions, an
/// outer loop, wakes and the drop.
fn live(what: &str, features: RingFeatures) {
    let new = || builder().ring_features(features, None).build().unwrap();
    let mut reactor: Reactor = new();
    let had = reactor.ring_features().unwrap();
    assert!(
        features.without(had) == RingFeatures::ALL.without(RingFeatures::ALL) || had == features,
        "{what}: {had:?}"
    );
    let log = Log::default();
    let fds: Vec<_> = (0..40).map(|_| Rc::new(counter(0))).collect();
    let manners =
        [interest().read(), interest().read().edge_triggered(), interest().read().one_shot()];
    let keys: Vec<_> = fds
        .iter()
        .enumerate()
        .map(|(who, fd)| noting(&mut reactor, fd, manners[who % 3], who, &log))
        .collect();
    for _ in 0..10 {
        fds.iter().for_each(fire);
        while log.borrow().len() < 40 {
            reactor.run_once(Duration::from_secs(10)).unwrap();
        }
        assert_eq!(heard(&log), (0..40).collect::<Vec<_>>(), "without {what}");
        assert_eq!(run_dry(&mut reactor), 0, "without {what}");
        for (who, key) in keys.iter().enumerate() {
            reactor.modify(*key, manners[who % 3]).unwrap();
        }
    }
    for key in &keys[..20] {
        reactor.delete(*key).unwrap();
    }
    fds.iter().for_each(fire);
    run_dry(&mut reactor);
    assert_eq!(heard(&log), (20..40).collect::<Vec<_>>(), "without {what}");
    let remote = reactor.remote();
    let poster = std::thread::spawn(move || {
        for _ in 0..100 {
            remote.post(|_: Turn<'_>| {}).map_err(drop).unwrap();
        }
        remote.post(|mut turn: Turn<'_>| turn.stop()).map_err(drop).unwrap();
    });
    reactor.run().unwrap();
    poster.join().unwrap();
    let mut guest = new().embed().unwrap();
    let fd = Rc::new(counter(0));
    guest.with(|reactor| noting(reactor, &fd, interest().read(), 1, &log));
    interest()
        .read()
        .with_fd(guest)
        .with_handler(|guest: &mut windlass::Embedded| _ = guest.run_once(NOW).unwrap())
        .register_into(&mut reactor)
        .unwrap();
    fire(&*fd);
    while log.borrow().is_empty() {
        reactor.run_once(Duration::from_secs(10)).unwrap();
    }
    assert_eq!(heard(&log), [1], "without {what}");
}

pub(crate) fn a_ring_does_without_each_of_them() {
    live("nothing", RingFeatures::ALL);
    let mut left = RingFeatures::ALL;
    for (what, feature) in EACH {
        live(what, RingFeatures::ALL.without(feature));
        left = left.without(feature);
        live(&format!("{what} and what came before"), left);
    }
}

pub(crate) fn what_is_missing_is_named() {
    for (missing, name) in [
        (RingFeature::NoDrop, "IORING_FEAT_NODROP"),
        (RingFeature::ExtArg, "IORING_FEAT_EXT_ARG"),
        (RingFeature::MultishotPoll, "IORING_POLL_ADD_MULTI"),
    ] {
        let error = builder().ring_features(RingFeatures::ALL, Some(missing)).build().unwrap_err();
        assert_eq!(error, BuildError::Ring(RingError::Missing(missing)));
        assert!(error.to_string().contains(name), "{error}");
    }
}
