//! A reactor that is moved to another thread, or borrowed by one.
use windlass::Reactor;

fn main() {
    let mut reactor = Reactor::new().unwrap();
    std::thread::spawn(move || reactor.run());

    let reactor = Reactor::new().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| reactor.stats());
    });
}
