//! Small pages that do not change while the server runs.

use std::{borrow::Cow, sync::Arc, time::SystemTime};

use windlass_ws::handshake::{AcceptError, Request};

use super::{
    header::{CustomHeaders, line},
    response,
};

/// The content of a [`Page`]. Copies share the bytes.
///
/// ```
/// use windlass_server::http::{Body, Page};
///
/// let built_in = Page::html("<p>part of the program");
/// let made_at_start = Page::new("text/plain", format!("{} CPUs", 8));
/// let shared = Body::from(vec![0; 1000]);
/// let (one, other) = (Page::new("image/png", shared.clone()), Page::new("image/x-icon", shared));
/// # let _ = (built_in, made_at_start, one, other);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Body {
    /// Built into the program.
    Static(&'static [u8]),
    /// Created at start.
    Shared(Arc<[u8]>),
}

impl Body {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Static(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

impl From<&'static [u8]> for Body {
    fn from(bytes: &'static [u8]) -> Self {
        Self::Static(bytes)
    }
}

impl From<&'static str> for Body {
    fn from(text: &'static str) -> Self {
        Self::Static(text.as_bytes())
    }
}

impl<const N: usize> From<&'static [u8; N]> for Body {
    fn from(bytes: &'static [u8; N]) -> Self {
        Self::Static(bytes)
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Shared(bytes.into())
    }
}

impl From<String> for Body {
    fn from(text: String) -> Self {
        Self::Shared(text.into_bytes().into())
    }
}

impl From<Arc<[u8]>> for Body {
    fn from(bytes: Arc<[u8]>) -> Self {
        Self::Shared(bytes)
    }
}

/// The content served at one path, to GET and HEAD requests.
///
/// Its responses have an `ETag` computed from the bytes. A client that already has them gets status
/// 304. The responses also have two headers that a [`header`](Self::header) of the same name
/// replaces:
///
/// - `Cache-Control: no-cache`, so that a client asks again each time.
/// - `X-Content-Type-Options: nosniff`.
///
/// ```
/// use windlass_server::http::{Page, Routes};
///
/// let page = Page::html("<!doctype html><title>Hello</title>")
///     .header("Content-Security-Policy", "default-src 'self'");
/// let routes = Routes::new().page("/", page).upgrade("/chat/*");
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Page {
    content_type: Cow<'static, str>,
    body: Body,
    headers: CustomHeaders,
}

impl Page {
    /// Creates a page of this media type, for instance `text/css`.
    pub fn new(content_type: impl Into<Cow<'static, str>>, body: impl Into<Body>) -> Self {
        Self {
            content_type: content_type.into(),
            body: body.into(),
            headers: CustomHeaders::default(),
        }
    }

    /// Creates a page of HTML in UTF-8.
    pub fn html(body: impl Into<Body>) -> Self {
        Self::new("text/html; charset=utf-8", body)
    }

    /// Adds a header. [`Routes::page`](super::Routes::page) panics if it cannot be sent.
    pub fn header(
        mut self,
        name: impl Into<Cow<'static, str>>,
        value: impl Into<Cow<'static, str>>,
    ) -> Self {
        self.headers.push(name.into(), value.into());
        self
    }

    /// Encodes everything that the page's responses have in common.
    ///
    /// # Errors
    /// If a header cannot be sent.
    pub(super) fn prepare(self) -> Result<EncodedPage, AcceptError> {
        self.headers.check(&["Content-Type", "ETag"])?;
        let mut content_type = CustomHeaders::default();
        content_type.push("Content-Type".into(), self.content_type);
        content_type.check(&[])?;
        let mut head = Vec::new();
        content_type.write(&mut head);
        head.extend_from_slice(b"Content-Length: ");
        response::decimal(self.body.bytes().len(), &mut head);
        head.extend_from_slice(b"\r\n");
        let unchanged_from = head.len();
        let etag = etag(self.body.bytes());
        line("ETag", &etag, &mut head);
        for (name, value) in [("Cache-Control", "no-cache"), ("X-Content-Type-Options", "nosniff")]
        {
            if !self.headers.has(name) {
                line(name, value, &mut head);
            }
        }
        self.headers.write(&mut head);
        Ok(EncodedPage { head: head.into(), unchanged_from, etag: etag.into(), body: self.body })
    }
}

/// A page with its encoded header lines.
#[derive(Clone, Debug)]
pub(super) struct EncodedPage {
    head: Arc<[u8]>,
    /// Offset of the lines that a 304 has too; the lines before it describe the body.
    unchanged_from: usize,
    etag: Box<str>,
    body: Body,
}

impl EncodedPage {
    /// Appends the response to a GET or HEAD request.
    pub(super) fn write(
        &self,
        request: &Request<'_>,
        is_last: bool,
        now: SystemTime,
        out: &mut Vec<u8>,
    ) {
        let is_unchanged = client_has(request, &self.etag);
        let (status, head) = if is_unchanged {
            (304, &self.head[self.unchanged_from..])
        } else {
            (200, &self.head[..])
        };
        let body = if is_unchanged || request.method() == "HEAD" { &[] } else { self.body.bytes() };
        // The status line, the Date, and the end of the head.
        const REST: usize = 128;
        out.reserve(head.len() + body.len() + REST);
        response::start(status, now, out);
        out.extend_from_slice(head);
        response::finish(is_last, body, out);
    }
}

/// Returns a strong validator (RFC 9110 section 8.8.3): the length of the bytes and their FNV-1a
/// hash. It depends on the bytes alone, so it is the same in all workers and after a restart. A
/// collision is no attack, because the bytes are the program's own.
fn etag(body: &[u8]) -> String {
    let hash = body.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("\"{:x}-{hash:016x}\"", body.len())
}

/// Returns whether the client has the version of this tag (RFC 9110 section 13.1.2).
fn client_has(request: &Request<'_>, etag: &str) -> bool {
    let known =
        request.headers().filter(|header| header.name.eq_ignore_ascii_case("If-None-Match"));
    known.into_iter().any(|header| header.value == b"*" || lists_tag(header.value, etag))
}

/// Returns whether a list of entity tags contains this one, weak or strong. Everything after a
/// syntax error is ignored.
fn lists_tag(mut list: &[u8], etag: &str) -> bool {
    loop {
        while let [b' ' | b'\t' | b',', rest @ ..] = list {
            list = rest;
        }
        let tag = list.strip_prefix(b"W/").unwrap_or(list);
        let Some(end) =
            tag.strip_prefix(b"\"").and_then(|rest| rest.iter().position(|&byte| byte == b'"'))
        else {
            return false;
        };
        let (tag, rest) = tag.split_at(end + 2);
        if tag == etag.as_bytes() {
            return true;
        }
        list = rest;
    }
}

#[cfg(test)]
mod tests {
    use windlass_ws::handshake::HeadLimits;

    use super::*;

    /// The response to a GET request with these further lines, from its second line on, without the
    /// Date.
    fn get(page: &Page, lines: &str) -> String {
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        let (request, _) = Request::parse(head.as_bytes(), &HeadLimits::DEFAULT).unwrap().unwrap();
        let mut out = b"kept".to_vec();
        page.clone().prepare().unwrap().write(&request, false, SystemTime::UNIX_EPOCH, &mut out);
        let text = String::from_utf8(out).unwrap();
        text.strip_prefix("kept").unwrap().replace("Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n", "")
    }

    #[test]
    fn the_whole_response() {
        let page = Page::html("hello").header("X-A", "b");
        assert_eq!(
            get(&page, ""),
            "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: 5\r\n\
             ETag: \"5-a430d84680aabd0b\"\r\n\
             Cache-Control: no-cache\r\nX-Content-Type-Options: nosniff\r\nX-A: b\r\n\r\nhello"
        );
        assert_eq!(
            get(&page, "If-None-Match: \"5-a430d84680aabd0b\"\r\n"),
            "HTTP/1.1 304 Not Modified\r\nETag: \"5-a430d84680aabd0b\"\r\n\
             Cache-Control: no-cache\r\n\
             X-Content-Type-Options: nosniff\r\nX-A: b\r\n\r\n"
        );
    }

    #[test]
    fn cache_headers_of_the_application_replace_the_default() {
        let text =
            get(&Page::new("text/css", Vec::new()).header("cache-control", "max-age=60"), "");
        assert!(
            text.contains("cache-control: max-age=60\r\n") && !text.contains("no-cache"),
            "{text}"
        );
        assert!(text.contains("Content-Length: 0\r\n") && text.ends_with("\r\n\r\n"), "{text}");
    }

    #[test]
    fn tags_are_known_in_every_way_of_writing_them() {
        let page = Page::html("hello");
        let tag = etag(b"hello");
        for known in [
            format!("If-None-Match: {tag}\r\n"),
            format!("if-none-match: W/{tag}\r\n"),
            format!("If-None-Match: \"a\", {tag}\r\n"),
            format!("If-None-Match: ,\"a,b\" ,\tW/\"\",{tag},\r\n"),
            format!("If-None-Match: \"a\"\r\nIf-None-Match: {tag}\r\n"),
            "If-None-Match: *\r\n".to_owned(),
        ] {
            assert!(get(&page, &known).starts_with("HTTP/1.1 304 "), "{known}");
        }
        let bare = tag.trim_matches('"');
        for unknown in [
            "If-None-Match: \"a\"\r\n".to_owned(),
            format!("If-None-Match: {bare}\r\n"),
            format!("If-None-Match: \"a{tag}\r\n"),
            format!("If-None-Match: a, {tag}\r\n"),
            format!("If-None-Match: w/{tag}\r\n"),
            format!("If-Match: {tag}\r\n"),
            "If-None-Match: \"*\"\r\n".to_owned(),
            "If-None-Match:\r\n".to_owned(),
            "If-None-Match: \"\r\n".to_owned(),
            "If-None-Match: W/\r\n".to_owned(),
        ] {
            assert!(get(&page, &unknown).starts_with("HTTP/1.1 200 "), "{unknown}");
        }
    }

    #[test]
    fn other_bytes_have_another_tag() {
        assert_ne!(etag(b"a"), etag(b"b"));
        assert_ne!(etag(b""), etag(b"\0"));
        assert_eq!(etag(b"a"), etag(b"a"));
    }

    #[test]
    fn bodies_convert_from_bytes_and_text() {
        for body in [
            Body::from("a"),
            b"a".into(),
            (&b"a"[..]).into(),
            b"a".to_vec().into(),
            "a".to_owned().into(),
        ] {
            assert_eq!(body.bytes(), b"a");
        }
        assert_eq!(Body::from(Arc::<[u8]>::from(*b"a")).bytes(), b"a");
    }

    #[test]
    fn headers_that_cannot_be_sent_are_found() {
        let page = |name: &'static str, value: &'static str| {
            Page::html("").header(name, value).prepare().map(drop)
        };
        assert_eq!(page("X", "a\r\nb"), Err(AcceptError::HeaderValue));
        assert_eq!(page("X:", "a"), Err(AcceptError::HeaderName));
        assert_eq!(page("Etag", "\"a\""), Err(AcceptError::ReservedHeader));
        assert_eq!(page("Content-Length", "1"), Err(AcceptError::ReservedHeader));
        assert_eq!(Page::new("a\nb", "").prepare().map(drop), Err(AcceptError::HeaderValue));
    }
}
