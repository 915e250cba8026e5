//! The bus over NATS, by the options of the command line.

use std::{
    fs,
    path::Path,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow};
use windlass_cluster::{NatsBus, NatsEvent};
use windlass_server::bus::{Cluster, SubjectMap};

use super::{ClusterArgs, NatsTls, NodeSetup};
use crate::serve::rooms::NOTICES;

/// How long the start waits for the limit of a NATS server.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// The minimum time between lines about attempts to connect that fail.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

pub(super) fn connect(args: &ClusterArgs) -> anyhow::Result<NodeSetup> {
    // Before a server is asked.
    SubjectMap::new(&args.cluster_prefix).context("invalid --cluster-prefix")?;
    let mut builder = NatsBus::builder(args.cluster.iter().map(String::as_str)).name("windlass");
    if let Some(path) = &args.cluster_creds {
        builder = builder.credentials_file(path);
    }
    if let (Some(user), Some(path)) = (&args.cluster_user, &args.cluster_password_file) {
        builder = builder.user_and_password(user, secret("--cluster-password-file", path)?);
    }
    if let Some(path) = &args.cluster_token_file {
        builder = builder.token(secret("--cluster-token-file", path)?);
    }
    if let Some(path) = &args.cluster_nkey_file {
        builder = builder.nkey_seed(secret("--cluster-nkey-file", path)?);
    }
    if let Some(path) = &args.cluster_ca {
        builder = builder.ca_file(path);
    }
    if let (Some(certificate), Some(key)) = (&args.cluster_cert, &args.cluster_key) {
        builder = builder.client_certificate(certificate, key);
    }
    builder = match args.cluster_tls {
        None => builder,
        Some(NatsTls::Required) => builder.require_tls(),
        Some(NatsTls::First) => builder.tls_first(),
    };
    let log = EventLog::default();
    let bus = builder.on_event(move |event| log.note(event)).build();
    // The error has its cause in its text.
    let bus = bus.map_err(|error| anyhow!("invalid --cluster or one of its options: {error}"))?;
    let payload_max = match bus.probe_payload_max(PROBE_TIMEOUT) {
        Ok(bytes) => Some(bytes),
        Err(error) => {
            tracing::warn!(
                %error,
                "no NATS server answers yet, so --message-max is not compared with its max_payload"
            );
            None
        }
    };
    let cluster = Cluster::new(bus).local_topics(NOTICES).prefix(&args.cluster_prefix);
    Ok(NodeSetup { cluster: cluster.context("invalid --cluster-prefix")?, payload_max })
}

/// Reads a secret, which may end with a line break.
fn secret(option: &str, path: &Path) -> anyhow::Result<String> {
    let text = fs::read_to_string(path);
    let text = text.with_context(|| format!("cannot read {option} {}", path.display()))?;
    Ok(text.trim_end().to_owned())
}

/// Writes what happens to the connection to the log. It is called on the thread of the bus.
#[derive(Default)]
struct EventLog {
    last_failure: Mutex<Option<Instant>>,
}

impl EventLog {
    fn note(&self, event: &NatsEvent) {
        match event {
            NatsEvent::Connected { server, payload_max } => {
                self.is_due(None);
                tracing::info!(%server, payload_max, "cluster: connected");
            }
            NatsEvent::ConnectFailed { .. } if !self.is_due(Some(Instant::now())) => {}
            event => tracing::warn!("cluster: {event}"),
        }
    }

    /// Returns whether a failed attempt is due for a line. `None` makes the next one due.
    fn is_due(&self, now: Option<Instant>) -> bool {
        let mut last = self.last_failure.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = last.zip(now).is_none_or(|(last, now)| now - last >= LOG_INTERVAL);
        if is_due {
            *last = now;
        }
        is_due
    }
}
