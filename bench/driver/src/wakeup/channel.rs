//! The common part of the bounded channels of the standard library, crossbeam and flume.

/// Defines `Queue`, the [`QueueSubject`](super::QueueSubject) of a bounded channel whose receiver
/// is a thread without other work. This is a macro, because the channels have no common trait. Its
/// arguments are the types of the two ends, and the function that creates them.
#[macro_export]
macro_rules! channel_queue {
    ($sender:ident, $receiver:ident, $bounded:path) => {
        struct Queue {
            sender: $sender<$crate::wakeup::Item>,
            receiver: $receiver<$crate::wakeup::Item>,
        }

        impl $crate::wakeup::QueueSubject for Queue {
            type Sender = QueueEnd;

            fn new(_backend: &str, bound: usize) -> Result<Self, $crate::Error> {
                let (sender, receiver) = $bounded(bound);
                Ok(Self { sender, receiver })
            }

            fn sender(&self) -> QueueEnd {
                QueueEnd(self.sender.clone())
            }

            fn run(&mut self, sink: &'static $crate::wakeup::Sink) -> Result<(), $crate::Error> {
                while !sink.is_done() {
                    sink.take(self.receiver.recv()?);
                }
                Ok(())
            }
        }

        struct QueueEnd($sender<$crate::wakeup::Item>);

        impl $crate::wakeup::QueueSender for QueueEnd {
            #[inline]
            fn send(
                &mut self,
                item: $crate::wakeup::Item,
                _sink: &'static $crate::wakeup::Sink,
            ) -> Result<(), $crate::Error> {
                Ok(self.0.send(item)?)
            }
        }
    };
}
