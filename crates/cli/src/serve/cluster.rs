//! `--cluster`: the rooms of several servers are one, over NATS.
//!
//! The options are there in every build. Without the feature `cluster` they are an error that says
//! how to build with it.

use std::path::PathBuf;

use anyhow::ensure;
use clap::ValueEnum;
use windlass_server::{
    Options,
    bus::{Cluster, Envelope},
};

use super::args::{Mode, ServeArgs};

#[cfg(feature = "cluster")]
mod nats;

/// The options of `windlass serve` for a cluster.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ClusterArgs {
    /// Addresses of NATS servers, nats://HOST:PORT or tls://HOST:PORT. All windlass servers with
    /// the same NATS and --cluster-prefix share their rooms: a message goes to the members at each
    /// of them, at most once. Members and figures are counted for each server alone. May be
    /// repeated. Only in mode chat [default: none]
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    pub(crate) cluster: Vec<String>,

    /// Beginning of the subjects on NATS: letters, digits, `-`, `_` and dots. Whoever may publish
    /// to them can send to every room
    #[arg(long, value_name = "NAME", default_value = "windlass", requires = "cluster")]
    pub(crate) cluster_prefix: String,

    /// File with the JWT and the seed of a NATS user (.creds)
    #[arg(long, value_name = "FILE", requires = "cluster", group = "cluster_identity")]
    pub(crate) cluster_creds: Option<PathBuf>,

    /// Name of a NATS user; needs --cluster-password-file
    #[arg(long, value_name = "NAME", requires_all = ["cluster", "cluster_password_file"])]
    #[arg(group = "cluster_identity")]
    pub(crate) cluster_user: Option<String>,

    /// File with the password of --cluster-user
    #[arg(long, value_name = "FILE", requires_all = ["cluster", "cluster_user"])]
    pub(crate) cluster_password_file: Option<PathBuf>,

    /// File with a token for NATS
    #[arg(long, value_name = "FILE", requires = "cluster", group = "cluster_identity")]
    pub(crate) cluster_token_file: Option<PathBuf>,

    /// File with the seed of an NKEY of a NATS user
    #[arg(long, value_name = "FILE", requires = "cluster", group = "cluster_identity")]
    pub(crate) cluster_nkey_file: Option<PathBuf>,

    /// PEM file with the certificates that are trusted, of authorities or of the NATS servers
    /// themselves, in place of those of the system. TLS is required then
    #[arg(long, value_name = "FILE", requires = "cluster")]
    pub(crate) cluster_ca: Option<PathBuf>,

    /// PEM file with the certificate that is shown to the NATS servers; needs --cluster-key. TLS is
    /// required then
    #[arg(long, value_name = "FILE", requires_all = ["cluster", "cluster_key"])]
    pub(crate) cluster_cert: Option<PathBuf>,

    /// PEM file with the private key of --cluster-cert
    #[arg(long, value_name = "FILE", requires_all = ["cluster", "cluster_cert"])]
    pub(crate) cluster_key: Option<PathBuf>,

    /// Answer 503 at /readyz of --admin while no NATS server can be reached [default: the answer is
    /// 200 and says so, because the members at this server still reach each other; the log has a
    /// warning, and the metric windlass_cluster_connected is 0]
    #[arg(long, requires = "cluster")]
    pub(crate) cluster_required: bool,

    /// TLS to NATS [default: required to tls:// and with --cluster-ca or --cluster-cert; otherwise
    /// each server decides, and credentials may cross in plain text]
    #[arg(long, value_enum, value_name = "WHEN", requires = "cluster")]
    pub(crate) cluster_tls: Option<NatsTls>,
}

/// When TLS to NATS begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum NatsTls {
    /// Never connect without TLS
    Required,
    /// Begin with TLS, for servers with `handshake_first`
    First,
}

impl ClusterArgs {
    /// Whether the server is a node of a cluster.
    pub(crate) fn is_on(&self) -> bool {
        !self.cluster.is_empty()
    }

    /// Rejects a cluster for a server that has no rooms.
    pub(crate) fn check(&self, mode: Mode) -> anyhow::Result<()> {
        ensure!(
            mode == Mode::Chat || !self.is_on(),
            "--cluster is only available in mode chat, where there are rooms"
        );
        Ok(())
    }
}

/// A server's part in its cluster, before it starts.
pub(crate) struct NodeSetup {
    cluster: Cluster,
    payload_max: Option<usize>,
}

impl NodeSetup {
    /// Checks the options, reads the files and asks a NATS server for its limit. `None` without
    /// `--cluster`.
    pub(crate) fn prepare(args: &ServeArgs) -> anyhow::Result<Option<Self>> {
        if !args.cluster.is_on() {
            return Ok(None);
        }
        connect(&args.cluster).map(Some)
    }

    /// The maximum payload of the NATS server, if it was there to be asked.
    pub(crate) fn payload_max(&self) -> Option<usize> {
        self.payload_max
    }

    pub(crate) fn into_cluster(self) -> Cluster {
        self.cluster
    }
}

/// Lowers the maximum length of a message to what goes to other nodes.
pub(crate) fn limit_to_payload(payload_max: Option<usize>, options: &mut Options) {
    let longest = payload_max.map(|bytes| bytes.saturating_sub(envelope_len()));
    let limits = &mut options.limits;
    if let Some(longest) = longest.filter(|longest| *longest < limits.message_max) {
        tracing::info!(
            message_max = longest,
            "--message-max {} is lowered to what the NATS server takes (max_payload)",
            limits.message_max
        );
        limits.message_max = longest;
        limits.frame_max = limits.frame_max.min(longest);
    }
}

/// The bytes that a node adds to a message. A room with a name of more than 200 bytes adds this
/// name too; a message that is too long with it stays at its node, and is counted.
fn envelope_len() -> usize {
    let (topic, payload) = (None, &[][..]);
    let (node, worker, epoch, sequence) = (0, 0, 0, 0);
    Envelope { node, worker, epoch, sequence, topic, is_text: true, payload }.encoded_len()
}

#[cfg(feature = "cluster")]
use nats::connect;

#[cfg(not(feature = "cluster"))]
fn connect(_: &ClusterArgs) -> anyhow::Result<NodeSetup> {
    anyhow::bail!(
        "this program was built without --cluster; the released one has it, and so has \
         `cargo install --path crates/cli --features cluster` in a checkout"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_and_its_envelope_fit_into_a_payload() {
        let limited = |payload_max: Option<usize>| {
            let mut options = Options::new();
            options.limits.message_max = 1000;
            options.limits.frame_max = 1000;
            limit_to_payload(payload_max, &mut options);
            (options.limits.message_max, options.limits.frame_max)
        };
        assert_eq!(envelope_len(), 28);
        assert_eq!(limited(None), (1000, 1000));
        assert_eq!(limited(Some(1028)), (1000, 1000));
        assert_eq!(limited(Some(1027)), (999, 999));
    }
}
