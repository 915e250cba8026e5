//! A reverse proxy with TLS on both sides, by tokio-rustls.
//!
//! `cargo run --example https_proxy -- CERTIFICATE.pem KEY.pem AUTHORITY.pem HOST:PORT` accepts
//! `https` on 127.0.0.1:9014 with that certificate, and passes requests on to HOST:PORT, whose
//! certificate must be signed by the authority.
//!
//! It shows:
//! - Requests and responses are streams. A body goes through piece by piece, with back-pressure,
//!   and is never in memory as a whole.
//! - The client's handshake runs in its connection's own task.
//! - If the server behind cannot be reached, the client gets status 502.

use std::{convert::Infallible, error::Error, io, rc::Rc, sync::Arc};

use http_body_util::{BodyExt as _, Empty, combinators::UnsyncBoxBody};
use hyper::{
    Request, Response, StatusCode, Version,
    body::{Bytes, Incoming},
    client::conn::http1,
    header::{self, HeaderName, HeaderValue},
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio_rustls::{
    TlsAcceptor, TlsConnector,
    rustls::{
        ClientConfig, RootCertStore, ServerConfig,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
    },
};
use windlass_http::{HttpServer, TlsListener};
use windlass_task::{
    Executor,
    net::{TcpListener, TcpStream},
    spawn,
};

type Failure = Box<dyn Error + Send + Sync>;
type Body = UnsyncBoxBody<Bytes, hyper::Error>;

/// Headers that hold for one connection alone (RFC 9110 section 7.6.1).
const HOP_BY_HOP: [HeaderName; 5] = [
    header::CONNECTION,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::TE,
    header::PROXY_AUTHORIZATION,
];

/// The server behind the proxy.
struct Origin {
    /// Host and port.
    address: String,
    name: ServerName<'static>,
    connector: TlsConnector,
}

impl Origin {
    fn new(address: &str, authority: &str) -> Result<Self, Failure> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(authority)? {
            roots.add(certificate?)?;
        }
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let (host, _) = address.rsplit_once(':').ok_or("the address lacks a port")?;
        Ok(Self {
            address: address.to_owned(),
            name: ServerName::try_from(host.to_owned())?,
            connector: TlsConnector::from(Arc::new(config)),
        })
    }

    /// Passes a request on, on a connection of its own.
    async fn send(&self, mut request: Request<Incoming>) -> Result<Response<Body>, Failure> {
        let stream = TcpStream::connect(&*self.address).await?;
        stream.set_nodelay(true)?;
        let stream = self.connector.connect(self.name.clone(), stream).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        spawn(async move { _ = connection.await }).detach();
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).parse()?;
        *request.uri_mut() = path;
        *request.version_mut() = Version::HTTP_11;
        let headers = request.headers_mut();
        HOP_BY_HOP.iter().for_each(|name| _ = headers.remove(name));
        headers.insert(header::HOST, HeaderValue::from_str(&self.address)?);
        let mut response = sender.send_request(request).await?;
        HOP_BY_HOP.iter().for_each(|name| _ = response.headers_mut().remove(name));
        Ok(response.map(|body| body.boxed_unsync()))
    }
}

async fn proxy(
    request: Request<Incoming>,
    origin: Rc<Origin>,
) -> Result<Response<Body>, Infallible> {
    Ok(origin.send(request).await.unwrap_or_else(|error| {
        eprintln!("{}: {error}", origin.address);
        let body = Empty::new().map_err(|never| match never {}).boxed_unsync();
        let mut response = Response::new(body);
        *response.status_mut() = StatusCode::BAD_GATEWAY;
        response
    }))
}

fn acceptor(certificates: &str, key: &str) -> Result<TlsAcceptor, Failure> {
    let chain = CertificateDer::pem_file_iter(certificates)?.collect::<Result<_, _>>()?;
    let key = PrivateKeyDer::from_pem_file(key)?;
    let mut config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn serve(listener: TlsListener, origin: Origin) -> io::Result<()> {
    let origin = Rc::new(origin);
    let service = service_fn(move |request| proxy(request, Rc::clone(&origin)));
    HttpServer::new().on_event(|event| eprintln!("{event}")).serve(listener, service).await
}

fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [certificates, key, authority, address] = &words[..] else {
        return Err("usage: https_proxy CERTIFICATE.pem KEY.pem AUTHORITY.pem HOST:PORT".into());
    };
    let (acceptor, origin) = (acceptor(certificates, key)?, Origin::new(address, authority)?);
    Executor::new()?.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:9014").await?;
        println!("listening on https://{}/", listener.local_addr()?);
        Ok(serve(TlsListener::new(listener, acceptor), origin).await?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::Full;

    const FILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/tls/tests/certificates/");

    fn file(name: &str) -> String {
        format!("{FILES}{name}")
    }

    async fn listen() -> (TlsListener, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let acceptor = acceptor(&file("localhost.pem"), &file("localhost.key")).unwrap();
        (TlsListener::new(listener, acceptor), format!("localhost:{port}"))
    }

    #[test]
    fn bodies_go_through_and_a_dead_server_is_a_bad_gateway() {
        let reactor = windlass_examples::builder().unwrap();
        Executor::builder().reactor(reactor).build().unwrap().block_on(async {
            let (behind, behind_address) = listen().await;
            let echo = service_fn(async |request: Request<Incoming>| {
                assert_eq!(request.uri().path(), "/echo");
                Ok::<_, Infallible>(Response::new(request.into_body()))
            });
            let behind = spawn(HttpServer::new().serve(behind, echo));
            let (front, front_address) = listen().await;
            let origin = Origin::new(&behind_address, &file("ca.pem")).unwrap();
            spawn(serve(front, origin)).detach();
            let client = Origin::new(&front_address, &file("ca.pem")).unwrap();
            for length in [0, 1, 3 << 20] {
                let body = Bytes::from(vec![b'p'; length]);
                let (status, back) = post(&client, body.clone()).await;
                assert_eq!((status, back), (StatusCode::OK, body));
            }
            behind.abort();
            assert!(behind.await.is_err());
            assert_eq!(post(&client, Bytes::new()).await.0, StatusCode::BAD_GATEWAY);
        });
    }

    async fn post(client: &Origin, body: Bytes) -> (StatusCode, Bytes) {
        let stream = TcpStream::connect(&*client.address).await.unwrap();
        let stream = client.connector.connect(client.name.clone(), stream).await.unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        spawn(async move { _ = connection.await }).detach();
        let request = Request::post("/echo").header("host", "localhost").body(Full::new(body));
        let response = sender.send_request(request.unwrap()).await.unwrap();
        let status = response.status();
        (status, response.into_body().collect().await.unwrap().to_bytes())
    }
}
