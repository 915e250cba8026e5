//! TLS of `windlass serve`: certificates from files, or one that is made for this run.

use std::{
    fmt::Write as _,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, ensure};
use clap::ValueEnum;
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair};
use sha2::{Digest as _, Sha256};
use windlass::stream::TlsSessionFactory;
use windlass_server::http::HostName;
use windlass_tls::{MinimumVersion, TlsAcceptor, TlsAcceptorBuilder};

use super::{
    admin::AdminPlace,
    args::{Mode, ServeArgs},
    place::ListenHost,
    reload::{Apply, Part},
};

/// The validity of a certificate that is made for this run. Some clients accept no longer one.
const SELF_SIGNED_VALIDITY: Duration = Duration::from_secs(397 * 24 * 3600);

/// Certificates that expire this soon are worth a warning.
const EXPIRES_SOON: Duration = Duration::from_secs(14 * 24 * 3600);

/// The options of `windlass serve` for TLS.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct TlsArgs {
    /// PEM file with a certificate and its chain, for https:// and wss:// on all listeners but those
    /// of --listen http:// and --admin without https://. May be repeated, each with its --tls-key:
    /// a client gets the certificate for the name that it asks for, else the first. SIGHUP reads
    /// all files again, for new handshakes
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_cert: Vec<PathBuf>,

    /// PEM file with the private key of a --tls-cert, in the same order
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_key: Vec<PathBuf>,

    /// TLS with a certificate that is made for this run, to try it out. It is valid for localhost,
    /// 127.0.0.1, ::1, the addresses of --listen and --admin, and the names of --host. No client
    /// trusts it; its SHA-256 fingerprint is printed
    #[arg(long, conflicts_with_all = ["tls_cert", "tls_key"])]
    pub(crate) tls_self_signed: bool,

    /// PEM file with certificates of authorities; each client must have a certificate of one of
    /// them (mutual TLS)
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_client_ca: Option<PathBuf>,

    /// Oldest version of TLS that is accepted [default: 1.2]
    #[arg(long, value_enum, value_name = "VERSION")]
    pub(crate) tls_min_version: Option<OldestVersion>,
}

/// The oldest version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OldestVersion {
    /// TLS 1.2
    #[value(name = "1.2")]
    Tls12,
    /// TLS 1.3
    #[value(name = "1.3")]
    Tls13,
}

impl TlsArgs {
    /// Whether the listeners have TLS.
    pub(crate) fn is_on(&self) -> bool {
        self.has_files() || self.tls_self_signed
    }

    /// Whether there are files that can be read again.
    pub(crate) fn has_files(&self) -> bool {
        !self.tls_cert.is_empty()
    }

    fn check(&self) -> anyhow::Result<()> {
        let (certificates, keys) = (self.tls_cert.len(), self.tls_key.len());
        ensure!(
            certificates == keys,
            "--tls-cert was given {certificates} times and --tls-key {keys} times; give one key \
             for each certificate, in the same order"
        );
        // Without TLS they would have no effect.
        for (is_given, option) in [
            (self.tls_client_ca.is_some(), "--tls-client-ca"),
            (self.tls_min_version.is_some(), "--tls-min-version"),
        ] {
            ensure!(
                self.is_on() || !is_given,
                "{option} needs a certificate of the server: add --tls-cert and --tls-key, or \
                 --tls-self-signed"
            );
        }
        Ok(())
    }
}

/// The TLS of all listeners.
pub(crate) struct ServerTls {
    acceptor: TlsAcceptor,
    has_files: bool,
    /// Of a certificate that was made for this run.
    fingerprint: Option<String>,
}

impl ServerTls {
    /// Reads the files, or makes a certificate. `None` without TLS.
    pub(crate) fn load(args: &ServeArgs) -> anyhow::Result<Option<Self>> {
        args.tls.check()?;
        if !args.tls.is_on() {
            return Ok(None);
        }
        let (mut builder, mut fingerprint) = (builder(args, args.mode), None);
        if args.tls.tls_self_signed {
            let made = self_signed(builder, names(args));
            let (with_certificate, of_it) = made.context("cannot make a certificate")?;
            (builder, fingerprint) = (with_certificate, Some(of_it));
        }
        let acceptor = builder.build().context("cannot set TLS up")?;
        warn_about_expiry(&acceptor);
        Ok(Some(Self { acceptor, has_files: args.tls.has_files(), fingerprint }))
    }

    /// What the listeners take.
    pub(crate) fn sessions(&self) -> Arc<dyn TlsSessionFactory> {
        Arc::new(self.acceptor.clone())
    }

    pub(crate) fn fingerprint(&self) -> Option<&str> {
        self.fingerprint.as_deref()
    }

    /// Returns the part that reads the files again. A certificate that was made for this run stays.
    pub(crate) fn part(self, mode: Mode) -> Option<Part> {
        let Self { acceptor, has_files, .. } = self;
        let prepare = move |args: &ServeArgs| -> anyhow::Result<Apply> {
            args.tls.check()?;
            ensure!(
                args.tls.has_files(),
                "the listeners have TLS, which takes a restart to end: --tls-cert is missing"
            );
            let prepared = acceptor.prepare(builder(args, mode)).context("cannot set TLS up")?;
            let acceptor = acceptor.clone();
            Ok(Box::new(move || {
                prepared.apply();
                warn_about_expiry(&acceptor);
            }))
        };
        let options = &["tls-cert", "tls-key", "tls-client-ca", "tls-min-version"];
        has_files.then(|| Part { options, prepare: Box::new(prepare) })
    }
}

/// The settings without a certificate that is made for this run.
fn builder(args: &ServeArgs, mode: Mode) -> TlsAcceptorBuilder {
    let TlsArgs { tls_cert, tls_key, tls_client_ca, tls_min_version, .. } = &args.tls;
    let mut builder = TlsAcceptor::builder().minimum_version(match tls_min_version {
        None | Some(OldestVersion::Tls12) => MinimumVersion::Tls12,
        Some(OldestVersion::Tls13) => MinimumVersion::Tls13,
    });
    if mode != Mode::Raw {
        builder = builder.alpn([b"http/1.1"]);
    }
    if let Some(authorities) = tls_client_ca {
        builder = builder.require_client_certificates(authorities);
    }
    for (certificate, key) in tls_cert.iter().zip(tls_key) {
        builder = builder.certificate(certificate, key);
    }
    builder
}

fn warn_about_expiry(acceptor: &TlsAcceptor) {
    let Some(expiry) = acceptor.status().earliest_expiry else { return };
    match expiry.duration_since(SystemTime::now()) {
        Err(since) => {
            let days = since.duration().as_secs() / (24 * 3600);
            tracing::warn!(
                days,
                "a certificate has expired, so clients reject it; replace the file and send SIGHUP"
            );
        }
        Ok(left) if left < EXPIRES_SOON => {
            let days = left.as_secs() / (24 * 3600);
            tracing::warn!(
                days,
                "a certificate expires soon; replace the file before, and send SIGHUP"
            );
        }
        Ok(_) => {}
    }
}

/// The names for which a certificate of this run is valid.
fn names(args: &ServeArgs) -> Vec<String> {
    let mut names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
    for place in &args.listen {
        match &place.host {
            ListenHost::Address(address) if address.ip().is_unspecified() => {}
            ListenHost::Address(address) => names.push(address.ip().to_string()),
            ListenHost::Name(name, _) => names.push(name.clone()),
        }
    }
    if let Some(AdminPlace::Tls(address)) = &args.admin
        && !address.ip().is_unspecified()
    {
        names.push(address.ip().to_string());
    }
    for host in &args.host {
        // `any` is no name. Others that are none are reported with the other options.
        if host != "any"
            && let Ok(host) = host.parse::<HostName>()
        {
            names.push(host.to_string().trim_matches(['[', ']']).to_owned());
        }
    }
    names.sort();
    names.dedup();
    names
}

/// Makes a key and a certificate, and returns its fingerprint.
fn self_signed(
    builder: TlsAcceptorBuilder,
    names: Vec<String>,
) -> Result<(TlsAcceptorBuilder, String), rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "windlass self-signed");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = rcgen::date_time_ymd(1970, 1, 1) + since_1970;
    // The clocks of clients may be slow.
    params.not_before = now - Duration::from_secs(24 * 3600);
    params.not_after = params.not_before + SELF_SIGNED_VALIDITY;
    let certificate = params.self_signed(&key)?;
    let mut fingerprint = String::new();
    for (at, byte) in Sha256::digest(certificate.der()).iter().enumerate() {
        // Writing to a string does not fail.
        let _ = write!(fingerprint, "{}{byte:02X}", if at > 0 { ":" } else { "" });
    }
    Ok((builder.certificate_pem(certificate.pem(), key.serialize_pem()), fingerprint))
}
