//! Nobody else writes a reactor, or a place to register with.
use windlass::Registrar;

struct Mine;

impl Registrar for Mine {
    type Ops = windlass::Reactor;
}

fn main() {}
