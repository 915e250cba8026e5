//! The rules of axe-core, which `.ci/install` installs.

use std::{
    fs,
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use libtest_mimic::{Completion, Trial};
use serde_json::{Value, json};

use crate::{
    appearance::SCREENS, chromium::Browser, devtools::Screen, harness::Server, page::Page,
};

const AXE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/browser/axe/node_modules/axe-core/axe.min.js");

/// The test, which is ignored without the browser or without axe-core.
pub(crate) fn trial(
    program: &Arc<Result<PathBuf, String>>,
    browser: &Arc<OnceLock<Browser>>,
) -> Trial {
    let (program, browser) = (Arc::clone(program), Arc::clone(browser));
    Trial::ignorable_test("appearance::axe_finds_no_violation", move || {
        let program = match &*program {
            Ok(program) => program,
            Err(reason) => return Ok(Completion::ignored_with(reason.as_str())),
        };
        let Ok(axe) = fs::read_to_string(AXE) else {
            return Ok(Completion::ignored_with("there is no axe-core; .ci/install installs it"));
        };
        axe_finds_no_violation(browser.get_or_init(|| crate::start(program)), &axe);
        Ok(Completion::Completed)
    })
}

fn axe_finds_no_violation(browser: &Browser, axe: &str) {
    let server = Server::start(&["--workers", "2"]);
    let devtools = browser.connect();
    let other = Page::open(&devtools, server.address, "");
    let page = Page::open(&devtools, server.address, "");
    other.say("hello");
    page.wait_for_message("hello");
    page.fill("#seconds", "1");
    page.0.press("Enter");
    page.0.wait("document.querySelector('#run-text').textContent.startsWith('Done')");
    page.0.wait("document.querySelector('#rooms a[href]')");
    page.0.evaluate(axe);
    for (name, screen) in SCREENS {
        for dark in [false, true] {
            page.0.show_on(Screen { dark, ..screen });
            let found = page.0.evaluate(
                "axe.run(document, { resultTypes: ['violations'] }).then(({ passes, violations }) =>
                    ({
                        passes: passes.length,
                        violations: violations.map(({ id, help, nodes }) =>
                            [id, help, nodes.map(({ html }) => html)]),
                    }))",
            );
            assert!(found["passes"].as_u64() > Some(20), "it has looked: {found}");
            assert_eq!(found["violations"], Value::Array(Vec::new()), "{name}, dark: {dark}");
        }
    }
    // It finds what is wrong.
    page.0.evaluate("document.querySelector('label[for=name]').remove()");
    let found =
        page.0.evaluate("axe.run().then(({ violations }) => violations.map(({ id }) => id))");
    assert!(found.as_array().is_some_and(|ids| ids.contains(&json!("label"))), "{found}");
}
