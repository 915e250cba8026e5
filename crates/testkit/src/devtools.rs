//! The parts of Chromium's DevTools protocol that these tests need:
//! <https://chromedevtools.github.io/devtools-protocol/>.

use std::{
    cell::{Cell, RefCell},
    net::TcpStream,
    rc::Rc,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use tungstenite::{Message, WebSocket, client::IntoClientRequest as _, protocol::WebSocketConfig};

use crate::browser::WAIT_MAX;

/// A connection to the browser with its own context, which shares nothing with the tabs of other
/// tests. Dropping it closes all of its tabs.
pub struct Devtools {
    wire: Rc<Wire>,
    /// The context: tabs, cookies and storage.
    context: String,
    sessions: RefCell<Vec<String>>,
}

struct Wire {
    socket: RefCell<WebSocket<TcpStream>>,
    last_id: Cell<u64>,
    /// The events received between answers.
    events: RefCell<Vec<Value>>,
}

impl Wire {
    /// Sends a command, and waits for its answer or error.
    fn call(&self, session: Option<&str>, method: &str, params: Value) -> Result<Value, String> {
        let id = self.last_id.get() + 1;
        self.last_id.set(id);
        let mut command = json!({"id": id, "method": method, "params": params});
        if let Some(session) = session {
            command["sessionId"] = json!(session);
        }
        let message = Message::text(command.to_string());
        self.socket
            .borrow_mut()
            .send(message)
            .unwrap_or_else(|error| panic!("{method} cannot be sent: {error}"));
        loop {
            let mut message = self.read(method);
            if message["id"] == id {
                return match message.get("error") {
                    Some(error) => Err(format!("{method}: {error}")),
                    None => Ok(message["result"].take()),
                };
            }
            self.events.borrow_mut().push(message);
        }
    }

    fn read(&self, waiting_for: &str) -> Value {
        loop {
            match self.socket.borrow_mut().read() {
                Ok(Message::Text(text)) => {
                    return serde_json::from_str(&text).expect("the browser writes JSON");
                }
                Ok(_) => {}
                Err(error) => panic!("the browser does not answer {waiting_for}: {error}"),
            }
        }
    }
}

impl Devtools {
    pub fn connect(address: &str) -> Self {
        let request = address.into_client_request().expect("the browser names a proper address");
        let authority = request.uri().authority().expect("with a host").as_str();
        let stream = TcpStream::connect(authority).expect("the browser listens");
        stream.set_nodelay(true).expect("it is a TCP socket");
        // A wait inside a page times out earlier, with a better message.
        stream.set_read_timeout(Some(2 * WAIT_MAX)).expect("a timeout can be set");
        // A screenshot is one message.
        let limits = WebSocketConfig::default().max_message_size(None).max_frame_size(None);
        let (socket, _) = tungstenite::client::client_with_config(request, stream, Some(limits))
            .expect("it speaks WebSocket");
        let wire = Rc::new(Wire {
            socket: RefCell::new(socket),
            last_id: Cell::new(0),
            events: RefCell::default(),
        });
        let context = wire
            .call(None, "Target.createBrowserContext", json!({"disposeOnDetach": true}))
            .expect("the browser makes windows");
        Self { wire, context: text(&context, "browserContextId"), sessions: RefCell::default() }
    }

    /// Opens a tab with `url`, and waits until it is loaded.
    pub fn open(&self, url: &str) -> Tab {
        let tab = self.empty_tab();
        tab.navigate(url);
        tab
    }

    /// Opens an empty tab.
    pub fn empty_tab(&self) -> Tab {
        let target = json!({"url": "about:blank", "browserContextId": self.context});
        let target =
            self.wire.call(None, "Target.createTarget", target).expect("a tab can be opened");
        let attach = json!({"targetId": text(&target, "targetId"), "flatten": true});
        let session =
            self.wire.call(None, "Target.attachToTarget", attach).expect("it can be spoken to");
        let tab = Tab { wire: Rc::clone(&self.wire), session: text(&session, "sessionId") };
        self.sessions.borrow_mut().push(tab.session.clone());
        for domain in ["Page", "Runtime", "Log"] {
            tab.call(&format!("{domain}.enable"), json!({}));
        }
        // It gets key events as if it were the front tab.
        tab.call("Emulation.setFocusEmulationEnabled", json!({"enabled": true}));
        tab
    }

    /// Returns the exceptions, warnings and errors of the pages since the last call, including
    /// violations of the policy.
    pub fn complaints(&self) -> Vec<String> {
        // The answer to a command follows all earlier events of the tab.
        for session in &*self.sessions.borrow() {
            self.wire
                .call(Some(session), "Runtime.evaluate", json!({"expression": "0"}))
                .expect("the tab is there");
        }
        let mut complaints = Vec::new();
        self.wire.events.borrow_mut().retain(|event| {
            let complaint = complaint_in(event);
            complaints.extend(complaint.clone());
            complaint.is_none()
        });
        complaints
    }
}

fn complaint_in(event: &Value) -> Option<String> {
    let params = &event["params"];
    match event["method"].as_str()? {
        "Runtime.exceptionThrown" => Some(params["exceptionDetails"].to_string()),
        "Runtime.consoleAPICalled" => Some(params["args"].to_string()),
        "Log.entryAdded" => {
            let entry = &params["entry"];
            let level = entry["level"].as_str().unwrap_or_default();
            (level == "error" || level == "warning").then(|| format!("{level}: {}", entry["text"]))
        }
        _ => None,
    }
}

fn text(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap_or_else(|| panic!("no {field} in {value}")).to_owned()
}

/// A tab.
pub struct Tab {
    wire: Rc<Wire>,
    session: String,
}

/// The properties of a screen and of its user.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    pub width: u32,
    pub height: u32,
    pub phone: bool,
    pub dark: bool,
}

impl Tab {
    /// Sends any command of the protocol. Panics if it fails.
    pub fn call(&self, method: &str, params: Value) -> Value {
        self.wire
            .call(Some(&self.session), method, params)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Navigates to `url`, which is another document, and waits until it is loaded.
    pub fn navigate(&self, url: &str) {
        let answer = self.call("Page.navigate", json!({"url": url}));
        assert!(answer.get("errorText").is_none(), "{url}: {answer}");
        self.wait_for_event("Page.loadEventFired");
    }

    /// Loads the document again, and waits until it is loaded.
    pub fn reload(&self) {
        self.call("Page.reload", json!({}));
        self.wait_for_event("Page.loadEventFired");
    }

    fn wait_for_event(&self, method: &str) {
        let is_it =
            |event: &Value| event["method"] == method && event["sessionId"] == *self.session;
        loop {
            let at = self.wire.events.borrow().iter().position(is_it);
            if let Some(at) = at {
                self.wire.events.borrow_mut().remove(at);
                return;
            }
            let event = self.wire.read(method);
            self.wire.events.borrow_mut().push(event);
        }
    }

    /// Returns the value of an expression, awaited if it is a promise. Panics after an exception.
    pub fn evaluate(&self, expression: &str) -> Value {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let mut answer = self.call("Runtime.evaluate", params);
        if let Some(exception) = answer.get("exceptionDetails") {
            let said = &exception["exception"]["description"];
            panic!("{}: {expression}", said.as_str().unwrap_or("exception"));
        }
        answer["result"]["value"].take()
    }

    /// Waits until an expression is true. Evaluates it again whenever the page changes.
    pub fn wait(&self, condition: &str) {
        let wait_max_ms = WAIT_MAX.as_millis();
        let promise = format!(
            "new Promise((resolve, reject) => {{
                const holds = () => Boolean({condition});
                const look = () => {{
                    if (!holds()) return;
                    observer.disconnect(); clearTimeout(timer); resolve();
                }};
                const observer = new MutationObserver(look);
                const all = {{
                    subtree: true, childList: true, attributes: true, characterData: true
                }};
                observer.observe(document, all);
                const timer = setTimeout(() => reject(new Error('waited in vain')), {wait_max_ms});
                look();
            }})"
        );
        self.evaluate(&promise);
    }

    /// Types text into the focused element.
    pub fn type_text(&self, text: &str) {
        self.call("Input.insertText", json!({"text": text}));
    }

    /// Presses and releases a key: `Enter`, `Tab`, `Space` or `ArrowLeft`.
    pub fn press(&self, key: &str) {
        let (key, code, number, text) = match key {
            "Enter" => ("Enter", "Enter", 13, "\r"),
            "Tab" => ("Tab", "Tab", 9, ""),
            "ArrowLeft" => ("ArrowLeft", "ArrowLeft", 37, ""),
            "Space" => (" ", "Space", 32, " "),
            other => panic!("{other} is no key these tests know"),
        };
        let event = json!({"key": key, "code": code, "windowsVirtualKeyCode": number});
        let (mut down, mut up) = (event.clone(), event);
        // A key that produces no text is a raw key.
        down["type"] = json!(if text.is_empty() { "rawKeyDown" } else { "keyDown" });
        down["text"] = json!(text);
        up["type"] = json!("keyUp");
        self.call("Input.dispatchKeyEvent", down);
        self.call("Input.dispatchKeyEvent", up);
    }

    /// Changes the screen.
    pub fn show_on(&self, screen: Screen) {
        let Screen { width, height, phone, dark } = screen;
        let metrics =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone});
        self.call("Emulation.setDeviceMetricsOverride", metrics);
        let scheme =
            json!({"name": "prefers-color-scheme", "value": if dark { "dark" } else { "light" }});
        self.call("Emulation.setEmulatedMedia", json!({"features": [scheme]}));
    }

    /// Returns the whole page as a PNG.
    pub fn screenshot(&self) -> Vec<u8> {
        let size = self.call("Page.getLayoutMetrics", json!({}));
        let (width, height) = (&size["cssContentSize"]["width"], &size["cssContentSize"]["height"]);
        let clip = json!({"x": 0, "y": 0, "width": width, "height": height, "scale": 1});
        let params = json!({"format": "png", "captureBeyondViewport": true, "clip": clip});
        let picture = self.call("Page.captureScreenshot", params);
        BASE64_STANDARD.decode(text(&picture, "data")).expect("the browser encodes pictures")
    }
}
