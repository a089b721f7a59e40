# SPDX-License-Identifier: Apache-2.0
"""HTML pages as tests read them."""

from html.parser import HTMLParser


class Page(HTMLParser):
    """The pictures, links and headings of a page, and the tags that were not closed."""

    def __init__(self, text):
        super().__init__()
        self.images, self.links, self.headings, self.open = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag == "img":
            self.images.append(dict(attributes))
        self.links += [value for name, value in attributes if name in ("src", "href")]
        if tag not in ("img", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("h1", "h2"):
            self.headings.append(data)
