//! Maps paths to upgrades and pages.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    time::SystemTime,
};

use windlass_ws::handshake::{self, Rejection, Request, Upgrade};

use super::{Page, page::EncodedPage, response};

/// The paths that accept upgrades, and the pages.
///
/// Paths are compared byte by byte as received. Nothing is decoded, and `.` and `..` are ordinary
/// names, so two programs on the way cannot interpret a path differently. The query is ignored.
///
/// | request | answer |
/// |---|---|
/// | an upgrade where upgrades are taken | the application's response |
/// | an upgrade elsewhere | 404; the connection ends |
/// | GET or HEAD of a page | the page, or 304; upgrades to protocols other than WebSocket are ignored |
/// | another method on a page | 405 |
/// | no upgrade, on a path that takes upgrades and has no page | 426 for GET, else 405; the connection ends |
/// | `OPTIONS *` | 204, with the supported methods |
/// | anything else | 404 |
///
/// An HTTP/1.1 connection is kept for the next request unless the client wants it closed. It ends
/// after a request with a body, which is never read, and after [`requests_max`](Self::requests_max)
/// requests. HTTP/1.0 gets one response.
///
/// ```
/// use windlass_server::http::{Page, Routes};
///
/// let routes = Routes::new()
///     .upgrade("/echo")
///     .upgrade("/room/*")
///     .page("/", Page::html("<h1>Rooms</h1>"))
///     .not_found("rooms are at /room/NAME");
/// assert!(routes.takes_upgrades("/room/lobby") && !routes.takes_upgrades("/room"));
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Routes {
    is_everywhere: bool,
    exact: BTreeSet<Box<str>>,
    /// Each prefix ends in a slash.
    prefixes: Vec<Box<str>>,
    pages: BTreeMap<Box<str>, EncodedPage>,
    /// Pages for all paths below a prefix, which ends in a slash.
    page_prefixes: Vec<(Box<str>, EncodedPage)>,
    not_found: Cow<'static, str>,
    requests_max: u32,
    waiting_bytes_max: usize,
}

/// The history of a connection before a request.
///
/// ```
/// use std::time::SystemTime;
/// use windlass_server::http::{Next, Page, Routes, Served};
/// use windlass_ws::handshake::{HeadLimits, Request};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let routes = Routes::new().upgrade("/echo").page("/", Page::html("hello"));
/// let head = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
/// let (request, _) = Request::parse(head, &HeadLimits::DEFAULT)?.expect("a whole head");
/// let served = Served { requests: 0, waiting_bytes: 0, now: SystemTime::now() };
/// let mut response = Vec::new();
/// // The connection is kept for the next request, because it has had few so far.
/// assert!(matches!(routes.answer(&request, &served, &mut response), Next::Request));
/// let served = Served { requests: 99, ..served };
/// assert!(matches!(routes.answer(&request, &served, &mut response), Next::Close));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Served {
    /// Number of requests already answered.
    pub requests: u32,
    /// Bytes of responses that the client has not read yet.
    pub waiting_bytes: usize,
    /// The current time, for the Date header.
    pub now: SystemTime,
}

/// The next step on a connection.
///
/// ```
/// use std::time::SystemTime;
/// use windlass_server::http::{Next, Page, Routes, Served};
/// use windlass_ws::handshake::{HeadLimits, Request};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let routes = Routes::new().upgrade("/echo").page("/", Page::html("hello"));
/// let head = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
/// let (request, _) = Request::parse(head, &HeadLimits::DEFAULT)?.expect("a whole head");
/// let served = Served { requests: 0, waiting_bytes: 0, now: SystemTime::now() };
/// let mut response = Vec::new();
/// match routes.answer(&request, &served, &mut response) {
///     Next::Upgrade(upgrade) => println!("a WebSocket: {:?}", upgrade.origin()),
///     Next::Request => println!("send the response, and read the next request"),
///     Next::Close => println!("send the response, and close the connection"),
/// }
/// assert!(response.starts_with(b"HTTP/1.1 200 OK\r\n") && response.ends_with(b"hello"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
#[expect(
    clippy::large_enum_variant,
    reason = "it is matched where it is made, and a box would allocate for each handshake"
)]
pub enum Next<'a> {
    /// Nothing was answered: the request is an upgrade to a path that accepts upgrades.
    Upgrade(Upgrade<'a>),
    /// The request was answered, and another one may follow.
    Request,
    /// The request was answered. Input after it must not be parsed as a request. The connection
    /// must be closed once the response is sent.
    Close,
}

impl Default for Routes {
    /// Accepts upgrades on every path.
    fn default() -> Self {
        Self::everywhere()
    }
}

impl Routes {
    /// Creates routes without upgrades and without pages.
    pub const fn new() -> Self {
        Self {
            is_everywhere: false,
            exact: BTreeSet::new(),
            prefixes: Vec::new(),
            pages: BTreeMap::new(),
            page_prefixes: Vec::new(),
            not_found: Cow::Borrowed(NOT_FOUND),
            requests_max: 100,
            waiting_bytes_max: 256 * 1024,
        }
    }

    /// Creates routes that accept upgrades on every path, without pages.
    pub const fn everywhere() -> Self {
        let mut routes = Self::new();
        routes.is_everywhere = true;
        routes
    }

    /// Accepts upgrades on a path (`/echo`), on all paths with a prefix (`/chat/*`, which includes
    /// `/chat/` but not `/chat`), or on all paths (`*`). The path may be a page as well.
    ///
    /// # Panics
    /// If the pattern is none of these: it has a `*` elsewhere, does not begin with a slash, or has
    /// a character that is invalid in a path.
    pub fn upgrade(mut self, pattern: &str) -> Self {
        let is_prefix = pattern.ends_with("/*");
        let path = if is_prefix { &pattern[..pattern.len() - 1] } else { pattern };
        assert!(
            pattern == "*" || (is_path(path) && !path.contains('*')),
            "an upgrade path is /a/path, /a/prefix/* or *, and {pattern:?} is not"
        );
        if pattern == "*" {
            self.is_everywhere = true;
        } else if is_prefix {
            self.prefixes.push(path.into());
        } else {
            self.exact.insert(path.into());
        }
        self
    }

    /// Sets the page at a path, or at all paths with a prefix (`/room/*`, which includes `/room/`
    /// but not `/room`). It replaces an earlier page of the same path. An exact path takes
    /// precedence over a prefix, and a longer prefix over a shorter one.
    ///
    /// # Panics
    /// If the path does not begin with a slash or has a character that is invalid in a path. If a
    /// header of the page cannot be sent.
    pub fn page(mut self, path: &str, page: Page) -> Self {
        assert!(
            is_path(path),
            "a page's path begins with a slash and has no query, and {path:?} is not such a path"
        );
        let page = page
            .prepare()
            .unwrap_or_else(|error| panic!("the page at {path} cannot be sent: {error}"));
        match path.strip_suffix('*').filter(|prefix| prefix.ends_with('/')) {
            Some(prefix) => {
                self.page_prefixes.retain(|(other, _)| **other != *prefix);
                self.page_prefixes.push((prefix.into(), page));
            }
            None => _ = self.pages.insert(path.into(), page),
        }
        self
    }

    /// Replaces the text of a 404 response, for instance to name existing paths. A line ending is
    /// added.
    pub fn not_found(mut self, text: impl Into<Cow<'static, str>>) -> Self {
        self.not_found = text.into();
        self
    }

    fn page_at(&self, path: &str) -> Option<&EncodedPage> {
        let below = || self.page_prefixes.iter().filter(|(prefix, _)| path.starts_with(&**prefix));
        let longest = || below().max_by_key(|(prefix, _)| prefix.len()).map(|(_, page)| page);
        self.pages.get(path).or_else(longest)
    }

    /// Sets the maximum number of requests on one connection; one is always answered. Default: 100.
    pub const fn requests_max(mut self, requests: u32) -> Self {
        self.requests_max = requests;
        self
    }

    /// Sets the maximum number of bytes of responses that wait to be sent. A request that finds
    /// more waiting is the connection's last. A client that does not read therefore holds at most
    /// this many bytes and one page. Default: 256 KiB.
    pub const fn waiting_bytes_max(mut self, bytes: usize) -> Self {
        self.waiting_bytes_max = bytes;
        self
    }

    /// Returns whether this path accepts upgrades.
    #[must_use]
    pub fn takes_upgrades(&self, path: &str) -> bool {
        self.is_everywhere
            || self.exact.contains(path)
            || self.prefixes.iter().any(|prefix| path.starts_with(&**prefix))
    }

    /// Returns the request as an upgrade, if it is a valid one to a path that accepts upgrades.
    /// Pass all others to [`answer`](Self::answer).
    #[inline]
    pub(crate) fn upgrade_of<'a>(&self, request: &Request<'a>) -> Option<Upgrade<'a>> {
        if self.takes_upgrades(request.path()) { request.upgrade().ok() } else { None }
    }

    /// Answers a request, or returns it as an upgrade.
    pub fn answer<'a>(
        &self,
        request: &Request<'a>,
        served: &Served,
        out: &mut Vec<u8>,
    ) -> Next<'a> {
        if request.path() == "*" {
            return self.options(request, served, out);
        }
        let page = self.page_at(request.path());
        let takes_upgrades = self.takes_upgrades(request.path());
        match request.upgrade() {
            Ok(upgrade) if takes_upgrades => return Next::Upgrade(upgrade),
            Err(rejection)
                if takes_upgrades && (page.is_none() || is_failed_upgrade(rejection)) =>
            {
                return reject(rejection, request, served, out);
            }
            Ok(_) => return self.text(404, &self.not_found, request, served, true, out),
            Err(rejection) if is_failed_upgrade(rejection) => {
                return self.text(404, &self.not_found, request, served, true, out);
            }
            Err(Rejection::UnknownMethod) => {
                return self.text(501, "unknown method", request, served, false, out);
            }
            Err(_) => {}
        }
        let Some(page) = page else {
            return self.text(404, &self.not_found, request, served, false, out);
        };
        if !matches!(request.method(), "GET" | "HEAD") {
            return self.text(405, "only GET and HEAD are allowed", request, served, false, out);
        }
        // The body has no meaning, and can hide a second request from a proxy (RFC 9110 section
        // 9.3.1).
        if request.body() != handshake::BodyLength::None {
            return self.text(400, "a request for a page has no body", request, served, true, out);
        }
        let is_last = self.is_last(request, served);
        page.write(request, is_last, served.now, out);
        if is_last { Next::Close } else { Next::Request }
    }

    /// Answers `OPTIONS *`, which asks for the server's capabilities (RFC 9110 section 9.3.7). No
    /// other request has that target.
    fn options<'a>(&self, request: &Request<'_>, served: &Served, out: &mut Vec<u8>) -> Next<'a> {
        let is_last = self.is_last(request, served);
        response::start(204, served.now, out);
        out.extend_from_slice(b"Allow: GET, HEAD, OPTIONS\r\n");
        response::finish(is_last, b"", out);
        if is_last { Next::Close } else { Next::Request }
    }

    /// Returns whether the connection ends with this request.
    fn is_last(&self, request: &Request<'_>, served: &Served) -> bool {
        request.is_http_1_0()
            || request.body() != handshake::BodyLength::None
            || served.requests.saturating_add(1) >= self.requests_max
            || served.waiting_bytes >= self.waiting_bytes_max
            || wants_close(request)
    }

    fn text<'a>(
        &self,
        status: u16,
        text: &str,
        request: &Request<'_>,
        served: &Served,
        is_last: bool,
        out: &mut Vec<u8>,
    ) -> Next<'a> {
        let is_last = is_last || self.is_last(request, served);
        response::start(status, served.now, out);
        if status == 405 {
            out.extend_from_slice(b"Allow: GET, HEAD\r\n");
        }
        response::text_headers(text.len(), out);
        response::finish(is_last, b"", out);
        if request.method() != "HEAD" {
            out.extend_from_slice(text.as_bytes());
            out.push(b'\n');
        }
        if is_last { Next::Close } else { Next::Request }
    }
}

const NOT_FOUND: &str = "there is nothing here";

/// Returns whether the request asks for a WebSocket in an invalid way. HTTP/1.0 cannot ask (RFC
/// 9110 section 7.8).
const fn is_failed_upgrade(rejection: Rejection) -> bool {
    use Rejection::{HttpVersion, MethodNotAllowed, NotAnUpgrade, UnknownMethod};
    !matches!(rejection, NotAnUpgrade | MethodNotAllowed | UnknownMethod | HttpVersion)
}

/// Sends the handshake's own response.
fn reject<'a>(
    rejection: Rejection,
    request: &Request<'_>,
    served: &Served,
    out: &mut Vec<u8>,
) -> Next<'a> {
    let start = out.len();
    response::reject(rejection, served.now, out);
    if request.method() == "HEAD" {
        response::without_body(out, start);
    }
    Next::Close
}

/// Returns whether the client wants the connection closed after this response (RFC 9112 section
/// 9.6).
pub(crate) fn wants_close(request: &Request<'_>) -> bool {
    let connection =
        request.headers().filter(|header| header.name.eq_ignore_ascii_case("Connection"));
    connection
        .flat_map(|header| header.value.split(|&byte| byte == b','))
        .any(|option| option.trim_ascii().eq_ignore_ascii_case(b"close"))
}

fn is_path(path: &str) -> bool {
    path.starts_with('/')
        && path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'?' && byte != b'#')
}

#[cfg(test)]
mod tests;
