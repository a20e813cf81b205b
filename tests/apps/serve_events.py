"""A web server for programs that know nothing of a migration: / is a page, /events a stream of numbered events without
an end. Usage: serve_events.py PORT"""

import http.server
import itertools
import sys
import time

PERIOD_S = 0.01


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are used again

    def do_GET(self):  # pylint: disable=invalid-name
        self.send_response(200)
        if self.path != "/events":
            self.send_header("Content-Length", "6")
            self.end_headers()
            self.wfile.write(b"hello\n")
            return
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for number in itertools.count(1):
            self.wfile.write(f"data: {number}\n\n".encode())
            self.wfile.flush()
            time.sleep(PERIOD_S)

    def log_message(self, format, *args):  # pylint: disable=redefined-builtin
        pass


http.server.ThreadingHTTPServer(("", int(sys.argv[1])), Handler).serve_forever()
