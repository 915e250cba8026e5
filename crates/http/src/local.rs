//! [`local`]: handlers of axum whose futures are not `Send`.

use core::future::Future;

use windlass_task::Pinned;

/// A handler for axum, of one whose future is not `Send`.
///
/// axum asks for futures that are `Send`, and says of others only that the trait `Handler` is not
/// implemented. A future that holds a socket of `windlass-task` across an `await` is not `Send`,
/// and neither is one that holds an `Rc`. The server polls it on its own thread alone. So this
/// puts it into a [`Pinned`], which is an allocation for each request.
///
/// The handler takes one argument: an extractor, or a tuple of extractors, or `()` for none. The
/// handler itself and its arguments are still `Send`: a state that is not is in an
/// `Arc<`[`Pinned`]`<..>>`.
///
/// ```
/// use axum::{Router, extract::{Path, State}, routing::get};
/// use windlass_http::local;
/// use windlass_task::net::TcpStream;
///
/// /// The first line that a server says. The socket is held across each `await`.
/// async fn banner(
///     (State(host), Path(port)): (State<String>, Path<u16>),
/// ) -> Result<String, String> {
///     let mut stream = TcpStream::connect((host, port)).await.map_err(|e| e.to_string())?;
///     let mut line = [0; 64];
///     let len = stream.read(&mut line).await.map_err(|e| e.to_string())?;
///     Ok(String::from_utf8_lossy(&line[..len]).into_owned())
/// }
///
/// let router: Router = Router::new()
///     .route("/banner/{port}", get(local(banner)))
///     .route("/", get(local(async |(): ()| "hello")))
///     .with_state("127.0.0.1".to_owned());
/// # drop(router);
/// ```
///
/// Without it, such a handler is an error that does not say why:
///
/// ```compile_fail,E0277
/// use axum::{Router, routing::get};
/// use windlass_task::net::TcpStream;
///
/// async fn connect() -> String {
///     let stream = TcpStream::connect("127.0.0.1:9").await;
///     format!("{stream:?}")
/// }
///
/// let router: Router = Router::new().route("/", get(connect));
/// ```
///
/// # Panics
/// A call panics where no executor runs on the thread. Polling the future panics on another thread.
/// Neither happens with [`HttpServer`](crate::HttpServer).
pub fn local<F, A, R>(handler: F) -> impl Fn(A) -> Pinned<R> + Clone + Send + Sync + 'static
where
    F: Fn(A) -> R + Clone + Send + Sync + 'static,
    R: Future + 'static,
{
    move |arguments| Pinned::new(handler(arguments))
}
