# A static binary in an empty image, run as nobody.
FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=dev
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /firsttoken ./cmd/gateway

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /firsttoken /firsttoken
USER 65534:65534
EXPOSE 8080 8081
ENTRYPOINT ["/firsttoken"]
CMD ["serve", "--config", "/etc/firsttoken/config.yaml"]
