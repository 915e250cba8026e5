//! Chromium as client. It opens WebSockets over HTTP/2 on a connection with TLS that it has for the
//! page already, if the server's settings allow it. The test is skipped where it is missing.

use std::{convert::Infallible, io::Write as _, path::Path};

use hyper::{Request, Response, body::Incoming, header, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{net::TcpListener, spawn, task::spawn_blocking};
use windlass_testkit::browser::{self, Browser};
use windlass_websocket::{
    Config, DeflateConfig,
    http2::server_settings,
    upgrade::{Upgrading, upgrade},
};

use crate::bed::{STREAMS_MAX, acceptor, echo, run};

/// Two sockets at the same time. Each sends three messages, and closes after their echoes.
const SCRIPT: &str = "
const talk = (name) => new Promise((resolve) => {
    const socket = new WebSocket(`wss://${location.host}/${name}`, ['other', 'echo']);
    socket.binaryType = 'arraybuffer';
    const heard = [];
    socket.onopen = () => {
        for (const data of [name, 'ü'.repeat(100000), new Uint8Array(70000)]) socket.send(data);
    };
    socket.onmessage = ({data}) => {
        heard.push(data.byteLength ?? (data === name ? data : data.length));
        if (heard.length === 3) socket.close(1000, 'done');
    };
    socket.onclose = ({code, wasClean}) => {
        resolve([...heard, code, wasClean, socket.protocol, socket.extensions.split(';')[0]]);
    };
});
Promise.all([talk('one'), talk('two')]).then(JSON.stringify)";

async fn answer(mut request: Request<Incoming>) -> Result<Response<String>, Infallible> {
    if request.uri().path() == "/" {
        let mut page = Response::new("<!doctype html><title>a page</title>".to_owned());
        let html = header::HeaderValue::from_static("text/html");
        page.headers_mut().insert(header::CONTENT_TYPE, html);
        return Ok(page);
    }
    let config = Config::new().deflate(DeflateConfig::DEFAULT).protocols(["echo"]);
    Ok(match upgrade(&mut request, &config) {
        Ok((response, upgrading)) => {
            spawn(serve(upgrading));
            response
        }
        Err(refused) => refused.into_response(),
    })
}

async fn serve(upgrading: Upgrading) {
    let socket = upgrading.await.expect("it is upgraded");
    assert!(socket.get_ref().is_http2());
    echo(socket).await;
}

#[test]
fn it_opens_several_sockets_on_the_connection_of_the_page() {
    let program = match browser::find() {
        Ok(program) => program,
        Err(why) => {
            let line = format!("skipped here: chromium: {why}\n");
            return std::io::stderr().write_all(line.as_bytes()).expect("it is open");
        }
    };
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                spawn(async {
                    // A connection for something else than HTTP/2 has no handshake.
                    if let Ok(stream) = acceptor().accept(stream).await {
                        let mut builder = http2::Builder::new(TokioExecutor::new());
                        server_settings(&mut builder, STREAMS_MAX);
                        let stream = TokioIo::new(stream);
                        // The browser ends it without a word.
                        let _ = builder.serve_connection(stream, service_fn(answer)).await;
                    }
                });
            }
        });
        let browser = spawn_blocking(move || {
            let browser = Browser::start(&program, Path::new(env!("CARGO_TARGET_TMPDIR")));
            let tab = browser.connect().open(&format!("https://{address}/"));
            tab.evaluate(SCRIPT).as_str().expect("a text").to_owned()
        });
        let result = browser.await.expect("it has an answer");
        let each =
            |name| format!(r#"["{name}",100000,70000,1000,true,"echo","permessage-deflate"]"#);
        assert_eq!(result, format!("[{},{}]", each("one"), each("two")));
    });
}
