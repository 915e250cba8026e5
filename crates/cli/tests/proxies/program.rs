//! A proxy in a process of its own.

use std::{
    fs,
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use windlass_testkit::waiting::until;

/// A program from the distribution.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Proxy {
    Haproxy,
    Nginx,
}

impl Proxy {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Haproxy => "haproxy",
            Self::Nginx => "nginx",
        }
    }

    fn path(self) -> Option<PathBuf> {
        // Users other than root do not have the last one in their PATH.
        let folders = ["/usr/sbin", "/usr/local/sbin", "/usr/bin"];
        folders.iter().map(|folder| Path::new(folder).join(self.name())).find(|path| path.exists())
    }

    pub(crate) fn is_there(self) -> bool {
        self.path().is_some()
    }
}

/// A folder of a proxy's files, which goes with it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "windlass-proxy-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).expect("it is a new name");
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(crate) struct Program {
    child: Child,
    pub(crate) port: u16,
    _folder: Folder,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Program {
    /// Starts haproxy in a mode with the lines of its backend.
    pub(crate) fn haproxy(mode: &str, backend: &str) -> Self {
        let config = |port, _: &Path| {
            format!(
                "defaults\n    mode {mode}\n    timeout connect 30s\n    timeout client 60s\n    \
                 timeout server 60s\n    timeout tunnel 60s\nlisten all\n    \
                 bind 127.0.0.1:{port}\n    {backend}\n"
            )
        };
        Self::start(Proxy::Haproxy, config, |command, file, _| {
            // Without a master or daemon, it is one process.
            command.arg("-db").arg("-f").arg(file);
        })
    }

    /// Starts nginx before a server.
    pub(crate) fn nginx(server: SocketAddr) -> Self {
        let config = |port, folder: &Path| {
            let folder = folder.display();
            format!(
                "daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log stderr;\n\
                 events {{}}\nhttp {{\n    access_log off;\n    \
                 client_body_temp_path {folder}/a;\n    \
                 proxy_temp_path {folder}/b;\n    fastcgi_temp_path {folder}/c;\n    \
                 uwsgi_temp_path {folder}/d;\n    scgi_temp_path {folder}/e;\n    \
                 server {{\n        \
                 listen 127.0.0.1:{port};\n        location / {{\n            \
                 proxy_pass http://{server};\n            proxy_http_version 1.1;\n            \
                 proxy_set_header Host localhost;\n            \
                 proxy_set_header Upgrade $http_upgrade;\n            \
                 proxy_set_header Connection upgrade;\n            \
                 proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;\n        \
                 }}\n    }}\n}}\n"
            )
        };
        Self::start(Proxy::Nginx, config, |command, file, folder| {
            command.arg("-p").arg(folder).arg("-c").arg(file);
        })
    }

    fn start(
        proxy: Proxy,
        config: impl Fn(u16, &Path) -> String,
        arguments: impl Fn(&mut Command, &Path, &Path),
    ) -> Self {
        let path = proxy.path().expect("the test is ignored without it");
        for _ in 0..20 {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let port = listener.local_addr().expect("it is bound").port();
            drop(listener);
            let folder = Folder::new();
            let file = folder.0.join("config");
            fs::write(&file, config(port, &folder.0)).expect("it is our folder");
            let mut command = Command::new(&path);
            arguments(&mut command, &file, &folder.0);
            let child = command.stdout(Stdio::null()).spawn().expect("it is there");
            let mut it = Self { child, port, _folder: folder };
            let is_started = until(
                || match it.child.try_wait().expect("it is a child") {
                    // Somebody else has the port now.
                    Some(_) => Some(false),
                    None => TcpStream::connect(("127.0.0.1", port)).is_ok().then_some(true),
                },
                || format!("{} at port {port}", proxy.name()),
            );
            if is_started {
                return it;
            }
        }
        panic!("{} ends again and again", proxy.name());
    }
}
