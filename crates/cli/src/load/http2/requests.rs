//! Requests, one at a time for each stream. All are the same GET.
//!
//! If the server ends a connection that it has answered a request on, it is opened again, and the
//! requests without a response are sent again (RFC 9113 section 8.7: a GET is idempotent).

use std::{
    future::{Future, pending, poll_fn},
    pin::{Pin, pin},
    rc::Rc,
};

use hyper::{Request, body::Body as _};
use windlass_task::{
    JoinHandle, race, spawn,
    time::{timeout, timeout_at},
};

use super::{
    chain,
    open::{Connection, Sender, not_http2},
    stream::LoadStream,
};
use crate::load::{
    fault::{Fault, FaultKind},
    http::{check_body, with_defaults},
    plan::{PlannedTarget, nanos},
    target::Protocol,
};

/// Why there is no response.
enum Failure {
    /// The connection, or the stream alone.
    Hyper(hyper::Error),
    Fault(Fault),
}

impl LoadStream {
    /// Starts the task of requests.
    pub(super) fn request_again_and_again(mut self, connection: &Rc<Connection>) -> JoinHandle<()> {
        let connection = Rc::clone(connection);
        spawn(async move {
            let ended = self.requests(&connection).await;
            self.end(ended);
        })
    }

    async fn requests(&mut self, connection: &Connection) -> Result<(), Fault> {
        let shared = Rc::clone(&self.shared);
        let mut change = pin!(shared.change.next());
        loop {
            let now = shared.now();
            if self.next(now).is_some() {
                self.answered_request(connection).await?;
                continue;
            }
            if self.is_at_end(now) {
                return Ok(());
            }
            let due = async {
                match self.next_moment() {
                    Some(moment) => shared.sleep_until(moment).await,
                    None => pending().await,
                }
            };
            if let windlass_task::Either::Second(()) = race(due, change.as_mut()).await {
                change.set(shared.change.next());
            }
        }
    }

    /// Sends the request until it is answered.
    async fn answered_request(&mut self, connection: &Connection) -> Result<(), Fault> {
        let args = &Rc::clone(&self.shared).plan.args;
        let limit = args.answer_timeout();
        let end = self.shared.now() + nanos(limit);
        let end = self.shared.run_state.clock.instant(end);
        loop {
            let (sender, generation) = connection.sender();
            let response = self.response(sender, connection.target());
            let response = match end {
                Some(end) => timeout_at(end, response).await,
                None => Ok(response.await),
            };
            match response {
                Ok(Ok((status, bytes))) => {
                    connection.has_served.set(true);
                    let now = self.shared.now();
                    return self.exchange(now, |exchange| {
                        check_body(exchange.due(), status, bytes, args.body_size)?;
                        exchange.response(status, bytes);
                        Ok(())
                    });
                }
                Ok(Err(Failure::Hyper(error))) => {
                    let is_renewed = connection.sender().1 != generation;
                    if !is_renewed && !connection.has_served.get() {
                        let Fault { text, .. } = not_http2();
                        let text = format!("{}; perhaps {text}", chain(&error));
                        return Err(Fault::new(FaultKind::ClosedEarly, text));
                    }
                    connection.renew(generation).await?;
                }
                Ok(Err(Failure::Fault(fault))) => return Err(fault),
                Err(_) => {
                    let (due, seconds) = (self.sequence.answered() + 1, limit.as_secs_f64());
                    let text = format!(
                        "no end of the answer to message {due} within {seconds} s; \
                         --answer-timeout sets the limit"
                    );
                    return Err(Fault::new(FaultKind::Lost, text));
                }
            }
        }
    }

    /// Sends the request once. Returns the status of the response, and the length of its body.
    async fn response(
        &self,
        mut sender: Sender,
        target: &PlannedTarget,
    ) -> Result<(u16, u64), Failure> {
        self.in_time(sender.ready()).await?;
        let mut response = self.in_time(sender.send_request(self.request(target))).await?;
        let mut bytes = 0;
        loop {
            let body = response.body_mut();
            let frame = poll_fn(|context| Pin::new(&mut *body).poll_frame(context));
            let frame = self.in_time(async { frame.await.transpose() }).await?;
            match frame {
                Some(frame) => bytes += frame.data_ref().map_or(0, |data| data.len() as u64),
                None => return Ok((response.status().as_u16(), bytes)),
            }
        }
    }

    /// Limits the time until the next progress.
    async fn in_time<T>(
        &self,
        step: impl Future<Output = Result<T, hyper::Error>>,
    ) -> Result<T, Failure> {
        let limit = self.shared.plan.args.timeout;
        match timeout(limit, step).await {
            Ok(done) => done.map_err(Failure::Hyper),
            Err(_) => Err(Failure::Fault(self.lost(limit))),
        }
    }

    fn request(&self, target: &PlannedTarget) -> Request<String> {
        let Protocol::Http(resource) = &target.target.protocol else {
            unreachable!("the arguments were checked");
        };
        let uri = format!("{}://{}{}", target.scheme(), resource.host, resource.path);
        let mut request = Request::get(uri);
        for (name, value) in with_defaults(&self.shared.plan.args.header) {
            request = request.header(name, value);
        }
        request.body(String::new()).expect("host and path were checked")
    }
}
