//! What workers exchange is `Send`, and so is what makes their futures.
use std::rc::Rc;
use windlass_task::{WorkerContext, Workers};

fn main() {
    let number = Rc::new(1);
    let _ = Workers::builder().start(move |_: WorkerContext| {
        let number = number.clone();
        async move { drop(number) }
    });
    let _ = Workers::builder().start(|_: WorkerContext<Rc<u32>>| async {});
    let _ = Workers::builder().start(|_: WorkerContext| async { Rc::new(1) });
    let _ = Workers::builder().start(|worker: WorkerContext| async move {
        std::thread::spawn(move || worker.index());
    });
}
