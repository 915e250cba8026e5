//! The suite's result of a case, and whether it counts as passed.

use std::{collections::BTreeMap, fmt, str::FromStr};

use anyhow::{Context as _, Result};
use serde::Deserialize;

use super::cases::CaseId;

/// The outcomes by case.
pub(super) type Outcomes = BTreeMap<CaseId, CaseOutcome>;

/// The suite's report of one case, in its own words.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct CaseOutcome {
    behavior: String,
    #[serde(rename = "behaviorClose")]
    behavior_close: String,
    /// The code in our Close frame, if we sent one.
    #[serde(rename = "remoteCloseCode")]
    close_code: Option<u16>,
}

impl CaseOutcome {
    /// Returns whether the case passed. Only OK counts: NON-STRICT is allowed by the standard, but
    /// other implementations do better, and UNIMPLEMENTED means that an extension was not
    /// negotiated. INFORMATIONAL counts for cases in which the suite accepts any behaviour.
    pub(super) fn is_passed(&self, case: &CaseId) -> bool {
        let good = if case.is_informational() { "INFORMATIONAL" } else { "OK" };
        self.behavior == good && self.behavior_close == good
    }

    /// Returns whether the standard allows it, for an implementation that is not ours.
    pub(super) fn is_legal(&self, case: &CaseId) -> bool {
        let is_legal = |outcome: &str| ["OK", "NON-STRICT"].contains(&outcome);
        self.is_passed(case) || is_legal(&self.behavior) && is_legal(&self.behavior_close)
    }
}

/// The format of the committed tables: `OK | OK | 1000`.
impl fmt::Display for CaseOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} | {} | ", self.behavior, self.behavior_close)?;
        match self.close_code {
            Some(code) => write!(f, "{code}"),
            None => f.write_str("none"),
        }
    }
}

impl FromStr for CaseOutcome {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let parts: Vec<&str> = text.split('|').map(str::trim).collect();
        let [behavior, behavior_close, code] = parts[..] else {
            anyhow::bail!("`{text}` is not `behaviour | close | code`");
        };
        let close_code = match code {
            "none" => None,
            code => Some(code.parse().with_context(|| format!("`{code}` is no code"))?),
        };
        Ok(Self {
            behavior: behavior.to_owned(),
            behavior_close: behavior_close.to_owned(),
            close_code,
        })
    }
}

/// Reads the suite's `index.json`, which lists the cases by the name of the tested agent.
pub(super) fn read_index(text: &str, agent: &str) -> Result<Outcomes> {
    let mut agents: BTreeMap<String, BTreeMap<String, CaseOutcome>> = serde_json::from_str(text)
        .context("the suite's index has another shape than that of release 25.10.1")?;
    let cases =
        agents.remove(agent).with_context(|| format!("the suite's index knows no `{agent}`"))?;
    anyhow::ensure!(
        agents.is_empty(),
        "the suite's index knows more than `{agent}`: {:?}",
        agents.keys()
    );
    cases.into_iter().map(|(case, outcome)| Ok((case.parse()?, outcome))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const INDEX: &str = r#"{"windlass": {
        "1.1.1": {"behavior": "OK", "behaviorClose": "OK", "duration": 2,
                      "remoteCloseCode": 1000, "reportfile": "a.json"},
        "6.4.1": {"behavior": "NON-STRICT", "behaviorClose": "OK", "duration": 2002,
                      "remoteCloseCode": null, "reportfile": "b.json"}
    }}"#;

    fn id(text: &str) -> CaseId {
        text.parse().expect("a name")
    }

    fn passes(case: &str, outcome: &str) -> bool {
        outcome.parse::<CaseOutcome>().expect("an outcome").is_passed(&id(case))
    }

    #[test]
    fn the_index_is_read() {
        let outcomes = read_index(INDEX, "windlass").expect("it is well formed");
        assert_eq!(outcomes.len(), 2);
        assert_eq!(outcomes[&id("1.1.1")].to_string(), "OK | OK | 1000");
        assert_eq!(outcomes[&id("6.4.1")].to_string(), "NON-STRICT | OK | none");
    }

    #[test]
    fn an_index_of_another_agent_or_without_a_field_is_rejected() {
        assert!(read_index(INDEX, "other").is_err());
        assert!(
            read_index(&INDEX.replace("{\"windlass\"", "{\"x\": {}, \"windlass\""), "windlass")
                .is_err()
        );
        assert!(read_index(&INDEX.replace("behaviorClose", "close"), "windlass").is_err());
        assert!(read_index(&INDEX.replace("1.1.1", "one"), "windlass").is_err());
        assert!(read_index("[]", "windlass").is_err());
    }

    #[test]
    fn only_ok_passes() {
        assert!(passes("1.1.1", "OK | OK | 1000"));
        for bad in [
            "NON-STRICT",
            "UNIMPLEMENTED",
            "INFORMATIONAL",
            "FAILED",
            "WRONG CODE",
            "UNCLEAN",
            "FAILED BY CLIENT",
        ] {
            assert!(!passes("1.1.1", &format!("{bad} | OK | 1000")), "{bad}");
            assert!(!passes("1.1.1", &format!("OK | {bad} | 1000")), "{bad}");
        }
    }

    #[test]
    fn non_strict_is_legal() {
        let is_legal = |outcome: &str| {
            outcome.parse::<CaseOutcome>().expect("an outcome").is_legal(&id("1.1.1"))
        };
        assert!(is_legal("OK | OK | 1000") && is_legal("NON-STRICT | OK | none"));
        for bad in ["UNIMPLEMENTED | OK | 1000", "FAILED | OK | 1000", "OK | UNCLEAN | 1000"] {
            assert!(!is_legal(bad), "{bad}");
        }
    }

    #[test]
    fn informational_passes_where_it_is_meant_so() {
        assert!(passes("7.1.6", "INFORMATIONAL | INFORMATIONAL | 1000"));
        assert!(!passes("7.1.6", "FAILED | INFORMATIONAL | 1000"));
        assert!(!passes("7.1.5", "INFORMATIONAL | INFORMATIONAL | 1000"));
    }

    #[test]
    fn an_outcome_is_read_as_it_is_written() {
        for text in ["OK | OK | 1000", "FAILED | WRONG CODE | none"] {
            assert_eq!(text.parse::<CaseOutcome>().expect("an outcome").to_string(), text);
        }
        assert!("OK | OK".parse::<CaseOutcome>().is_err());
        assert!("OK | OK | many".parse::<CaseOutcome>().is_err());
    }
}
