//! Other crates cannot implement a reactor or a registrar.
use windlass::Registrar;

struct Mine;

impl Registrar for Mine {
    type Ops = windlass::Reactor;
}

fn main() {}
