//! The client of windlass-websocket against a server of another library.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use windlass_websocket::{
    CloseCode, Config, DeflateConfig,
    client::{
        Client, ClientSocket, Tokio,
        rustls::{
            ClientConfig, RootCertStore,
            crypto::ring,
            pki_types::{CertificateDer, pem::PemObject as _},
        },
    },
};

use super::verdict::Verdict;

pub(super) const FRAGMENTS: &str = "fragments_are_joined";
pub(super) const COMPRESSED: &str = "compressed_messages_come_back";
pub(super) const TESTS: [&str; 6] = [
    "messages_come_back",
    COMPRESSED,
    FRAGMENTS,
    "pings_are_answered",
    "closing_codes_come_back",
    "the_servers_close_is_received",
];

const SIZES: [usize; 7] = [0, 1, 125, 126, 65_535, 65_536, 1 << 20];

/// The limit of time of a test.
const PATIENCE: Duration = Duration::from_secs(60);

/// A client of one server.
pub(super) struct OurClient {
    /// Without a path.
    url: String,
    client: Client,
}

impl OurClient {
    /// A client that trusts the authority in a file.
    pub(super) fn new(url: String, authority: &Path) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        let certificate = CertificateDer::from_pem_file(authority);
        roots.add(certificate.with_context(|| authority.display().to_string())?)?;
        let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let client = Client::new(&url).tls(Arc::new(tls));
        Ok(Self { url, client })
    }

    /// Runs a test of [`TESTS`].
    pub(super) fn run(&self, test: &str) -> Verdict {
        match self.outcome(test) {
            Ok(()) => Verdict::Passed,
            Err(error) => Verdict::Failed(format!("{error:#}")),
        }
    }

    fn outcome(&self, test: &str) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let test = async {
                match test {
                    "messages_come_back" => self.echoes("/", false).await,
                    COMPRESSED => self.echoes("/", true).await,
                    FRAGMENTS => {
                        self.echoes("/fragments", false).await?;
                        let mut socket = self.connect("/fragments", true).await?;
                        echo_once(&mut socket, 65_536).await?;
                        close(socket, CloseCode::NORMAL, "").await
                    }
                    "pings_are_answered" => self.pings().await,
                    "closing_codes_come_back" => self.closing_codes().await,
                    _ => self.servers_close().await,
                }
            };
            tokio::time::timeout(PATIENCE, test).await.context("it takes too long")?
        })
    }

    async fn connect(&self, path: &str, deflate: bool) -> Result<ClientSocket<Tokio>> {
        let config = Config::new().inflate_ratio_max(None);
        let config = if deflate { config.deflate(DeflateConfig::DEFAULT) } else { config };
        let client = self.client.clone().url(&format!("{}{path}", self.url)).config(config);
        let socket = client.connect().await?;
        ensure!(deflate || !socket.has_compression(), "compression that nobody offered");
        Ok(socket)
    }

    /// Echoes texts and binary messages of every size.
    async fn echoes(&self, path: &str, deflate: bool) -> Result<()> {
        let mut socket = self.connect(path, deflate).await?;
        ensure!(socket.has_compression() == deflate, "the server has not accepted compression");
        // The servers make no fragments of an empty message.
        for size in SIZES.into_iter().filter(|size| *size > 0 || path == "/") {
            echo_once(&mut socket, size).await.with_context(|| format!("{size} bytes"))?;
        }
        close(socket, CloseCode::NORMAL, "").await
    }

    /// The server pings, and then we.
    async fn pings(&self) -> Result<()> {
        let mut socket = self.connect("/ping", false).await?;
        let message = socket.recv().await?.context("it has closed")?;
        ensure!(message.as_str() == Some("ponged"), "{:?}", message.as_str());
        for payload in [&b""[..], b"x", &[7; 125]] {
            socket.ping(payload).await?;
            echo_once(&mut socket, 100).await?;
        }
        close(socket, CloseCode::NORMAL, "").await
    }

    async fn closing_codes(&self) -> Result<()> {
        for (code, reason) in [(1000, ""), (1001, "bye"), (3000, "own"), (4999, "ü")] {
            let socket = self.connect("/", false).await?;
            close(socket, CloseCode::new(code), reason).await?;
        }
        Ok(())
    }

    async fn servers_close(&self) -> Result<()> {
        let mut socket = self.connect("/close", false).await?;
        ensure!(socket.recv().await?.is_none(), "a message that nobody sent");
        let close = socket.peer_close().context("no Close frame")?;
        ensure!(close.code == Some(CloseCode::new(4001)), "{close:?}");
        ensure!(close.reason == "by the server", "{close:?}");
        Ok(())
    }
}

/// Sends a text and a binary message, and expects them back.
async fn echo_once(socket: &mut ClientSocket<Tokio>, size: usize) -> Result<()> {
    let text: String = "aü€ 😀 and plain text ".chars().cycle().take(size).collect();
    let text = &text[..text.floor_char_boundary(size)];
    socket.send(text).await?;
    let echo = socket.recv().await?.context("it has closed")?;
    ensure!(echo.as_str() == Some(text), "another text, {} long", echo.as_bytes().len());
    let bytes: Vec<u8> = (0..size).map(|at| (131 * at + 7 * (at >> 8)).to_le_bytes()[0]).collect();
    socket.send(&bytes[..]).await?;
    let echo = socket.recv().await?.context("it has closed")?;
    ensure!(!echo.is_text() && echo.as_bytes() == bytes, "other bytes, {}", echo.as_bytes().len());
    Ok(())
}

/// Closes, and expects the same code back.
async fn close(mut socket: ClientSocket<Tokio>, code: CloseCode, reason: &str) -> Result<()> {
    socket.close(code, reason).await?;
    let answer = socket.peer_close().context("no Close frame")?;
    ensure!(answer.code == Some(code), "{code:?} is answered by {answer:?}");
    Ok(())
}
